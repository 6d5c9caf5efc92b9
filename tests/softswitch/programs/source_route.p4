// Source routing: the packet carries the list of ports that it wants to leave by; each switch takes the first off.

#include "common.p4"

const bit<16> ETHERTYPE_ROUTE = 0x1234;

#define MAX_HOPS 9

header hop_t {
    bit<1>  last;
    bit<15> port;
}

struct headers_t {
    ethernet_t      ethernet;
    hop_t[MAX_HOPS] route;
    ipv4_t          ipv4;
}

struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_ROUTE: parse_hop;
            default: accept;
        }
    }
    state parse_hop {
        packet.extract(hdr.route.next);
        transition select(hdr.route.last.last) {
            1: parse_ipv4;
            default: parse_hop;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop() {
        mark_to_drop(standard_metadata);
    }

    action next_hop() {
        standard_metadata.egress_spec = (bit<9>) hdr.route[0].port;
        hdr.route.pop_front(1);
    }

    action arrive() {
        hdr.ethernet.ether_type = ETHERTYPE_IPV4;
    }

    action age() {
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    apply {
        if (hdr.route[0].isValid() && standard_metadata.parser_error == error.NoError) {
            if (hdr.route[0].last == 1) {
                arrive();
            }
            next_hop();
            if (hdr.ipv4.isValid()) {
                age();
            }
        } else {
            drop();
        }
    }
}

NO_EGRESS(egress)
NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.route);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
