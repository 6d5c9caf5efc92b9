// Frames that say themselves where they go, for tests of queues, ports and the paths through a switch.
//
//     p4c-bm2-ss --std p4-16 steer.p4 -o steer.json --p4runtime-files steer.p4info.txtpb

#include <core.p4>
#include <v1model.p4>

const bit<32> EGRESS_CLONE = 2;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header step_t {
    bit<8>  kind;      // of ingress: see below
    bit<8>  port;
    bit<8>  priority;
    bit<8>  after;     // of egress
    bit<8>  number;    // clone session, multicast group, or passes
    bit<8>  instance;  // written by egress: instance type
    bit<16> rid;       // written by egress
    bit<16> before;    // written by egress: packets in the queue when this one came
    bit<16> behind;    // written by egress: packets in the queue when this one left
    bit<32> waited;    // written by egress: microseconds in the queue
    bit<32> tag;
}

struct headers_t {
    ethernet_t ethernet;
    step_t     step;
}

struct metadata_t {
    @field_list(1)
    bit<8> passes;
}

parser TheParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x8888: step;
            default: accept;
        }
    }
    state step {
        packet.extract(hdr.step);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action discard() {
        mark_to_drop(std);
    }
    action send() {
        std.egress_spec = (bit<9>)hdr.step.port;
        std.priority = (bit<3>)hdr.step.priority;
    }
    action replicate() {
        std.mcast_grp = (bit<16>)hdr.step.number;
        std.priority = (bit<3>)hdr.step.priority;
    }
    action copy_and_send() {
        clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.step.number, 1);
        send();
    }
    table kinds {
        key = { hdr.step.kind: exact; }
        actions = { discard; send; replicate; copy_and_send; }
        const default_action = discard();
        const entries = {
            0: send();
            2: replicate();
            3: copy_and_send();
            4: send();
        }
    }
    apply {
        if (!hdr.step.isValid()) {
            mark_to_drop(std);
        } else {
            kinds.apply();
            if (hdr.step.kind == 4 && meta.passes < hdr.step.number) {
                meta.passes = meta.passes + 1;
                resubmit_preserving_field_list(1);
            }
        }
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (hdr.step.after == 1) {
            mark_to_drop(std);
        } else if (hdr.step.after == 2 && std.instance_type != EGRESS_CLONE) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.step.number, 1);
        } else if (hdr.step.after == 3 && meta.passes < hdr.step.number) {
            meta.passes = meta.passes + 1;
            recirculate_preserving_field_list(1);
        } else if (hdr.step.after == 4) {
            truncate(40);
        }
        hdr.step.instance = (bit<8>)std.instance_type;
        hdr.step.rid = std.egress_rid;
        hdr.step.before = (bit<16>)std.enq_qdepth;
        hdr.step.behind = (bit<16>)std.deq_qdepth;
        hdr.step.waited = std.deq_timedelta;
    }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control TheDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.step);
    }
}

V1Switch(TheParser(), Verify(), TheIngress(), TheEgress(), Compute(), TheDeparser()) main;
