// Mirroring: clones at ingress show the packet as it came, clones at egress as it leaves; both carry what was kept of the metadata.

#include "common.p4"

const bit<16> ETHERTYPE_MIRROR = 0x9999;

header mirror_t {
    bit<8>  kind;
    bit<8>  reason;
    bit<16> port;
    bit<16> ether_type;
}

struct headers_t {
    ethernet_t ethernet;
    mirror_t   mirror;
}

struct metadata_t {
    @field_list(1, 2)
    bit<8> reason;
    @field_list(2)
    bit<16> port;
    bit<8> forgotten;
}

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
        hdr.ethernet.src_addr = 0x020000000001;
    }

    action mirror(bit<32> session, bit<8> reason) {
        meta.reason = reason;
        meta.port = (bit<16>) standard_metadata.ingress_port;
        meta.forgotten = 1;
        clone_preserving_field_list(CloneType.I2E, session, 1);
    }

    table stations {
        key = {
            hdr.ethernet.dst_addr: exact;
        }
        actions = {
            forward;
            drop;
        }
        default_action = drop();
    }

    table watched {
        key = {
            hdr.ethernet.ether_type: exact;
        }
        actions = {
            mirror;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        stations.apply();
        watched.apply();
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action mirror(bit<32> session, bit<8> reason) {
        meta.reason = reason;
        meta.port = (bit<16>) standard_metadata.egress_port;
        clone_preserving_field_list(CloneType.E2E, session, 2);
    }

    table watched_leaving {
        key = {
            standard_metadata.egress_port: exact;
        }
        actions = {
            mirror;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        if (standard_metadata.instance_type == INGRESS_CLONE || standard_metadata.instance_type == EGRESS_CLONE) {
            hdr.mirror.setValid();
            hdr.mirror.kind = (bit<8>) standard_metadata.instance_type | (meta.forgotten << 7);
            hdr.mirror.reason = meta.reason;
            hdr.mirror.port = meta.port;
            hdr.mirror.ether_type = hdr.ethernet.ether_type;
            hdr.ethernet.ether_type = ETHERTYPE_MIRROR;
        } else {
            watched_leaving.apply();
        }
    }
}

NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.mirror);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
