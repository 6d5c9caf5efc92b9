// What p4c describes to P4Runtime in unusual ways: translated types, tuples as digests, value sets with several fields, a selector
// that two tables share, direct counters of const entries.
//
//     p4c-bm2-ss --std p4-16 odd.p4 -o odd.json --p4runtime-files odd.p4info.txtpb

#include <core.p4>
#include <v1model.p4>

@p4runtime_translation("softswitch/port", 32)
type bit<9> port_id_t;

enum bit<8> Kind_t {
    PLAIN = 1,
    FANCY = 2
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header tag_t {
    Kind_t  kind;
    bit<24> label;
}

@controller_header("packet_in")
header packet_in_t {
    bit<3>    color;
    port_id_t port;
    bit<4>    pad;
}

@controller_header("packet_out")
header packet_out_t {
    bit<7>    pad;
    port_id_t port;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
    tag_t        tag;
}

struct metadata_t {
    bit<16> selector;
}

struct types_t {
    @match(ternary)
    bit<16> type;
    @match(lpm)
    bit<48> dst;
    @match(optional)
    bit<8>  first;
}

parser TheParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    value_set<types_t>(4) tagged;

    state start {
        transition select(std.ingress_port) {
            510: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type, hdr.ethernet.dst, hdr.ethernet.src[47:40]) {
            tagged: tag;
            default: accept;
        }
    }
    state tag {
        packet.extract(hdr.tag);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets) tag_counter;
    action_selector(HashAlgorithm.crc16, 32, 8) balancer;

    action forward(port_id_t port) {
        std.egress_spec = (bit<9>)port;
    }
    action to_controller(bit<3> color) {
        std.egress_spec = 510;
        hdr.packet_in.setValid();
        hdr.packet_in.color = color;
        hdr.packet_in.port = (port_id_t)std.ingress_port;
        hdr.packet_in.pad = 0;
    }
    action learn() {
        digest(1, { hdr.ethernet.src, hdr.tag.kind });
    }
    action count_tag() {
        tag_counter.count();
    }

    table ports {
        key = { std.ingress_port: exact @name("port"); }
        actions = { forward; to_controller; learn; }
        size = 16;
    }
    table kinds {
        key = {
            hdr.tag.kind: exact;
            hdr.tag.label: ternary;
        }
        actions = { count_tag; NoAction; }
        counters = tag_counter;
        const entries = {
            (Kind_t.PLAIN, 7): count_tag();
            (Kind_t.PLAIN, _): count_tag();
            (Kind_t.FANCY, 0x10 &&& 0xf0): NoAction();
        }
    }
    table left {
        key = {
            hdr.ethernet.dst: exact;
            meta.selector: selector;
        }
        actions = { forward; NoAction; }
        implementation = balancer;
        size = 16;
    }
    table right {
        key = {
            hdr.ethernet.src: exact;
            meta.selector: selector;
        }
        actions = { forward; NoAction; }
        implementation = balancer;
        size = 16;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = (bit<9>)hdr.packet_out.port;
            hdr.packet_out.setInvalid();
        } else {
            meta.selector = hdr.ethernet.type;
            ports.apply();
            left.apply();
            right.apply();
            if (hdr.tag.isValid()) {
                kinds.apply();
            }
        }
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply { }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control TheDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.tag);
    }
}

V1Switch(TheParser(), Verify(), TheIngress(), TheEgress(), Compute(), TheDeparser()) main;
