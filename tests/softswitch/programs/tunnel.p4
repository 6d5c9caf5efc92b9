// A tunnel between Ethernet and IPv4: put on where a route says so, switched by its id, taken off at its end; both ends count.

#include "common.p4"

const bit<16> ETHERTYPE_TUNNEL = 0x1212;
const bit<32> TUNNELS = 128;

header tunnel_t {
    bit<16> ether_type;
    bit<16> id;
}

struct headers_t {
    ethernet_t ethernet;
    tunnel_t   tunnel;
    ipv4_t     ipv4;
}

struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_TUNNEL: parse_tunnel;
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_tunnel {
        packet.extract(hdr.tunnel);
        transition select(hdr.tunnel.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(TUNNELS, CounterType.packets_and_bytes) entered;
    counter(TUNNELS, CounterType.packets_and_bytes) left;

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action enter(bit<16> id) {
        hdr.tunnel.setValid();
        hdr.tunnel.id = id;
        hdr.tunnel.ether_type = hdr.ethernet.ether_type;
        hdr.ethernet.ether_type = ETHERTYPE_TUNNEL;
        entered.count((bit<32>) id);
    }

    action leave(bit<9> port) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.ether_type = hdr.tunnel.ether_type;
        left.count((bit<32>) hdr.tunnel.id);
        hdr.tunnel.setInvalid();
    }

    table routes {
        key = {
            hdr.ipv4.dst_addr: lpm;
        }
        actions = {
            forward;
            enter;
            drop;
        }
        default_action = drop();
    }

    table tunnels {
        key = {
            hdr.tunnel.id: exact;
        }
        actions = {
            forward;
            leave;
            drop;
        }
        default_action = drop();
    }

    apply {
        if (!hdr.ipv4.isValid() && !hdr.tunnel.isValid()) {
            drop();
        }
        if (hdr.ipv4.isValid() && !hdr.tunnel.isValid()) {
            routes.apply();
        }
        if (hdr.tunnel.isValid()) {
            tunnels.apply();
        }
    }
}

NO_EGRESS(egress)
NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.tunnel);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
