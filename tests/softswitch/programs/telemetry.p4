// In-band telemetry: each switch pushes its number and the depth of its queue into an IPv4 option.

#include "common.p4"

const bit<5> OPTION_TELEMETRY = 31;

#define MAX_HOPS 9

header option_t {
    bit<1> copied;
    bit<2> class_;
    bit<5> option;
    bit<8> length;
}

header telemetry_t {
    bit<16> count;
}

header hop_t {
    bit<32> switch_id;
    bit<32> queue_depth;
}

struct headers_t {
    ethernet_t      ethernet;
    ipv4_t          ipv4;
    option_t        option;
    telemetry_t     telemetry;
    hop_t[MAX_HOPS] hops;
}

struct metadata_t {
    bit<16> remaining;
}

error { ShortIpv4Header }

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
        verify(hdr.ipv4.ihl >= 5, error.ShortIpv4Header);
        transition select(hdr.ipv4.ihl) {
            5: accept;
            default: parse_option;
        }
    }
    state parse_option {
        packet.extract(hdr.option);
        transition select(hdr.option.option) {
            OPTION_TELEMETRY: parse_telemetry;
            default: accept;
        }
    }
    state parse_telemetry {
        packet.extract(hdr.telemetry);
        meta.remaining = hdr.telemetry.count;
        transition select(meta.remaining) {
            0: accept;
            default: parse_hop;
        }
    }
    state parse_hop {
        packet.extract(hdr.hops.next);
        meta.remaining = meta.remaining - 1;
        transition select(meta.remaining) {
            0: accept;
            default: parse_hop;
        }
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop() {
        mark_to_drop(standard_metadata);
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
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

    apply {
        if (hdr.ipv4.isValid() && standard_metadata.parser_error == error.NoError) {
            routes.apply();
        } else {
            drop();
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action push(bit<32> switch_id) {
        hdr.telemetry.count = hdr.telemetry.count + 1;
        hdr.hops.push_front(1);
        hdr.hops[0].setValid();
        hdr.hops[0].switch_id = switch_id;
        hdr.hops[0].queue_depth = (bit<32>) standard_metadata.deq_qdepth;
        hdr.ipv4.ihl = hdr.ipv4.ihl + 2;
        hdr.option.length = hdr.option.length + 8;
        hdr.ipv4.total_length = hdr.ipv4.total_length + 8;
    }

    table identity {
        actions = {
            push;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        if (hdr.telemetry.isValid() && hdr.ipv4.ihl <= 13 && hdr.telemetry.count < MAX_HOPS) {
            identity.apply();
        }
    }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.option);
        packet.emit(hdr.telemetry);
        packet.emit(hdr.hops);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
