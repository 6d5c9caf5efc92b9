// One of everything that P4Runtime controls, for the tests of the server.
//
//     p4c-bm2-ss --std p4-16 control.p4 -o control.json --p4runtime-files control.p4info.txtpb

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> length;
    bit<16> id;
    bit<3>  flags;
    bit<13> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> flags;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
    ipv4_t       ipv4;
}

struct learn_t {
    bit<48> address;
    bit<9>  port;
}

struct metadata_t {
    bit<16> selector;
    bit<2>  color;
    bit<8>  tunnel;
}

parser TheParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    value_set<bit<16>>(4) tunnel_types;

    state start {
        transition select(std.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            tunnel_types: tunnel;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
    state tunnel {
        meta.tunnel = 1;
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(16, CounterType.packets_and_bytes) port_counter;
    meter(8, MeterType.bytes) port_meter;
    register<bit<32>>(32) last_type;
    register<int<16>>(4) signed_cells;
    direct_counter(CounterType.packets_and_bytes) smac_counter;
    direct_meter<bit<2>>(MeterType.bytes) acl_meter;
    action_selector(HashAlgorithm.identity, 64, 16) balancer;
    action_profile(16) hops;

    action drop() {
        mark_to_drop(std);
    }
    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    action forward_to(bit<9> port, bit<48> dst) {
        std.egress_spec = port;
        hdr.ethernet.dst = dst;
    }
    action flood(bit<16> group) {
        std.mcast_grp = group;
    }
    action mirror(bit<32> session) {
        clone(CloneType.I2E, session);
    }
    action to_controller(bit<7> reason) {
        std.egress_spec = CPU_PORT;
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = std.ingress_port;
        hdr.packet_in.reason = reason;
    }
    action learn() {
        digest<learn_t>(1, { hdr.ethernet.src, std.ingress_port });
    }
    action count_direct() {
        smac_counter.count();
    }
    action permit() {
        acl_meter.read(meta.color);
    }
    @defaultonly action miss() { }

    table smac {
        key = { hdr.ethernet.src: exact; }
        actions = { count_direct; learn; NoAction; }
        counters = smac_counter;
        support_timeout = true;
        size = 4096;
        default_action = NoAction;
    }
    table dmac {
        key = { hdr.ethernet.dst: exact; }
        actions = { forward; flood; to_controller; drop; @defaultonly miss; }
        size = 8192;
        default_action = miss;
    }
    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward_to; drop; @tableonly mirror; }
        size = 1024;
        default_action = drop;
    }
    table acl {
        key = {
            std.ingress_port: optional;
            hdr.ethernet.type: ternary;
            hdr.ipv4.protocol: range;
            hdr.ipv4.isValid(): exact;
        }
        actions = { permit; drop; mirror; }
        meters = acl_meter;
        size = 64;
    }
    table classes {
        key = { hdr.ipv4.tos: ternary; }
        actions = { forward; drop; }
        const entries = {
            0x10 &&& 0xfc: forward(3);
            0x20 &&& 0xf0: drop();
        }
        const default_action = drop;
    }
    table balanced {
        key = {
            hdr.ipv4.src: exact;
            meta.selector: selector;
        }
        actions = { forward; drop; }
        implementation = balancer;
        size = 128;
    }
    table shared_hops {
        key = { hdr.ipv4.id: exact; }
        actions = { forward_to; drop; }
        implementation = hops;
        size = 128;
    }
    table always {
        actions = { forward; NoAction; }
        default_action = NoAction;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            port_counter.count((bit<32>)std.ingress_port);
            port_meter.execute_meter((bit<32>)std.ingress_port, meta.color);
            last_type.write(0, (bit<32>)hdr.ethernet.type);
            signed_cells.write(0, -1);
            smac.apply();
            dmac.apply();
            if (hdr.ipv4.isValid()) {
                meta.selector = hdr.ipv4.src[15:0] ^ hdr.ipv4.dst[15:0];
                routes.apply();
                classes.apply();
                balanced.apply();
                shared_hops.apply();
            }
            acl.apply();
            always.apply();
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
        packet.emit(hdr.ipv4);
    }
}

V1Switch(TheParser(), Verify(), TheIngress(), TheEgress(), Compute(), TheDeparser()) main;
