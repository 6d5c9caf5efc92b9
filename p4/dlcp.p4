// A switch that enforces what DLCP's end hosts wrote on their packets; docs/switch.md describes it.

#include <core.p4>
#include <v1model.p4>

#include "constants.p4"
#include "headers.p4"
#include "parser.p4"
#include "checksums.p4"
#include "state.p4"
#include "isolation.p4"
#include "classification.p4"
#include "forwarding.p4"
#include "spraying.p4"
#include "dropping.p4"
#include "marking.p4"
#include "stamping.p4"
#include "trimming.p4"
#include "deparser.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    Isolation()      isolation;
    Classification() classification;
    Forwarding()     forwarding;
    Spraying()       spraying;
    Dropping()       dropping;
    Marking()        marking;

    apply {
        isolation.apply(hdr, meta, std);
        classification.apply(hdr, meta, std);
        forwarding.apply(hdr, meta, std);
        spraying.apply(hdr, meta, std);
        if (std.mcast_grp == 0) {
            dropping.apply(meta, std);
            marking.apply(hdr, meta);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    Stamping() stamping;
    Trimming() trimming;

    apply {
        queue_depths.write((bit<32>)(std.egress_port ++ std.priority), (bit<32>)std.deq_qdepth);
        if (std.mcast_grp != 0 && std.egress_port == std.ingress_port) {
            mark_to_drop(std);
        } else {
            if (meta.stamp) {
                stamping.apply(hdr, std);
            }
            if (meta.trim) {
                trimming.apply(hdr, meta);
                trimmed.count((bit<32>)meta.slot);
            } else {
                forwarded.count((bit<32>)meta.slot);
            }
        }
    }
}

V1Switch(SwitchParser(), VerifyChecksums(), SwitchIngress(), SwitchEgress(), ComputeChecksums(), SwitchDeparser()) main;
