// A learning switch: an unknown source is told to the controller by digest, an unknown destination is flooded.

#include "common.p4"

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t { }

struct station_t {
    bit<48> address;
    bit<9>  port;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action learn() {
        digest<station_t>(1, { hdr.ethernet.src_addr, standard_metadata.ingress_port });
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }

    table sources {
        key = {
            hdr.ethernet.src_addr: exact;
        }
        actions = {
            learn;
            NoAction;
        }
        default_action = learn();
        support_timeout = true;
    }

    table destinations {
        key = {
            hdr.ethernet.dst_addr: exact;
        }
        actions = {
            forward;
            flood;
        }
        default_action = flood(1);
    }

    apply {
        sources.apply();
        destinations.apply();
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        }
    }
}

NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
