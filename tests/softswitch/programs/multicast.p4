// Multicast: copies carry their replication id in the source address; a copy does not go back to where the packet came from.

#include "common.p4"

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop() {
        mark_to_drop(standard_metadata);
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action replicate(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }

    table stations {
        key = {
            hdr.ethernet.dst_addr: ternary;
        }
        actions = {
            forward;
            replicate;
            drop;
        }
        default_action = drop();
    }

    apply {
        stations.apply();
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.instance_type == REPLICATED) {
            hdr.ethernet.src_addr[15:0] = standard_metadata.egress_rid;
            if (standard_metadata.egress_port == standard_metadata.ingress_port) {
                mark_to_drop(standard_metadata);
            }
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
