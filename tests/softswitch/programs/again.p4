// Resubmission and recirculation: the packet says how often it wants to go around in each way, and learns how often it did.

#include "common.p4"

const bit<16> ETHERTYPE_ROUNDS = 0x8765;

header rounds_t {
    bit<8>  resubmit;
    bit<8>  recirculate;
    bit<8>  resubmitted;
    bit<8>  recirculated;
    bit<16> length;
}

struct headers_t {
    ethernet_t ethernet;
    rounds_t   rounds;
}

struct metadata_t {
    @field_list(1)
    bit<8> resubmitted;
    @field_list(2)
    bit<8> recirculated;
    @field_list(1, 2)
    bit<9> port;
    bit<8> forgotten;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_ROUNDS: parse_rounds;
            default: accept;
        }
    }
    state parse_rounds {
        packet.extract(hdr.rounds);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<32>>(8) passes;

    apply {
        bit<32> seen;
        passes.read(seen, standard_metadata.instance_type);
        passes.write(standard_metadata.instance_type, seen + 1);
        if (!hdr.rounds.isValid()) {
            mark_to_drop(standard_metadata);
        } else {
            meta.forgotten = meta.forgotten + 1;
            if (standard_metadata.instance_type == NORMAL) {
                // The ingress port is 0 when a packet comes again.
                meta.port = standard_metadata.ingress_port;
            }
            if (meta.resubmitted < hdr.rounds.resubmit) {
                meta.resubmitted = meta.resubmitted + 1;
                hdr.rounds.length = 0xdead;
                resubmit_preserving_field_list(1);
            } else {
                hdr.rounds.resubmitted = hdr.rounds.resubmitted + meta.resubmitted;
                hdr.rounds.resubmit = 0;
            }
            standard_metadata.egress_spec = meta.port;
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        hdr.rounds.length = (bit<16>) standard_metadata.packet_length;
        hdr.rounds.recirculated = meta.recirculated + (meta.forgotten - 1);
        if (meta.recirculated < hdr.rounds.recirculate) {
            meta.recirculated = meta.recirculated + 1;
            recirculate_preserving_field_list(2);
        }
    }
}

NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.rounds);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
