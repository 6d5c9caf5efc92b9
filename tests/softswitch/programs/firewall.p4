// A firewall with state: who opens a TCP connection from inside is let in from outside; a Bloom filter of two hashes remembers it.

#include "common.p4"

const bit<32> FILTER_BITS = 4096;

header tcp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<32> sequence;
    bit<32> acknowledgement;
    bit<4>  data_offset;
    bit<4>  reserved;
    bit<6>  other_flags;
    bit<1>  syn;
    bit<1>  fin;
    bit<16> window;
    bit<16> checksum;
    bit<16> urgent;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
    tcp_t      tcp;
}

struct metadata_t {
    bit<1>  inside;
    bit<32> first;
    bit<32> second;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.protocol) {
            PROTOCOL_TCP: parse_tcp;
            default: accept;
        }
    }
    state parse_tcp {
        packet.extract(hdr.tcp);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<1>>(FILTER_BITS) first_filter;
    register<bit<1>>(FILTER_BITS) second_filter;

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action set_inside(bit<1> inside) {
        meta.inside = inside;
    }

    action compute(bit<32> near, bit<32> far, bit<16> near_port, bit<16> far_port) {
        hash(meta.first, HashAlgorithm.crc16, 32w0, { near, far, near_port, far_port, hdr.ipv4.protocol }, FILTER_BITS);
        hash(meta.second, HashAlgorithm.crc32, 32w0, { near, far, near_port, far_port, hdr.ipv4.protocol }, FILTER_BITS);
    }

    table routes {
        key = {
            hdr.ipv4.dst_addr: lpm;
        }
        actions = {
            forward;
            drop;
        }
        default_action = drop();
    }

    table sides {
        key = {
            standard_metadata.ingress_port: range;
        }
        actions = {
            set_inside;
        }
        default_action = set_inside(0);
    }

    apply {
        if (!hdr.ipv4.isValid()) {
            drop();
            exit;
        }
        if (!routes.apply().hit) {
            exit;
        }
        if (hdr.tcp.isValid()) {
            sides.apply();
            if (meta.inside == 1) {
                compute(hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.tcp.src_port, hdr.tcp.dst_port);
                if (hdr.tcp.syn == 1) {
                    first_filter.write(meta.first, 1);
                    second_filter.write(meta.second, 1);
                }
            } else {
                bit<1> first;
                bit<1> second;
                compute(hdr.ipv4.dst_addr, hdr.ipv4.src_addr, hdr.tcp.dst_port, hdr.tcp.src_port);
                first_filter.read(first, meta.first);
                second_filter.read(second, meta.second);
                if (first & second != 1) {
                    drop();
                }
            }
        }
    }
}

NO_EGRESS(egress)
NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.tcp);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
