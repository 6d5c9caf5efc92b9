// A calculator: the packet asks for an operation on two numbers, and goes back to where it came from with the result.

#include "common.p4"

const bit<16> ETHERTYPE_CALC = 0x1234;

header calc_t {
    bit<8>  letter;
    bit<8>  digit;
    bit<8>  version;
    bit<8>  operation;
    bit<32> a;
    bit<32> b;
    bit<32> result;
}

struct headers_t {
    ethernet_t ethernet;
    calc_t     calc;
}

struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_CALC: check;
            default: accept;
        }
    }
    state check {
        transition select(packet.lookahead<bit<24>>()[23:16], packet.lookahead<bit<24>>()[15:8], packet.lookahead<bit<24>>()[7:0]) {
            (0x50, 0x34, 0x01): parse_calc;
            default: accept;
        }
    }
    state parse_calc {
        packet.extract(hdr.calc);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action reply(bit<32> result) {
        bit<48> requester = hdr.ethernet.src_addr;
        hdr.ethernet.src_addr = hdr.ethernet.dst_addr;
        hdr.ethernet.dst_addr = requester;
        hdr.calc.result = result;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    action add() { reply(hdr.calc.a + hdr.calc.b); }
    action subtract() { reply(hdr.calc.a - hdr.calc.b); }
    action multiply() { reply(hdr.calc.a * hdr.calc.b); }
    action and() { reply(hdr.calc.a & hdr.calc.b); }
    action or() { reply(hdr.calc.a | hdr.calc.b); }
    action xor() { reply(hdr.calc.a ^ hdr.calc.b); }
    action add_saturating() { reply(hdr.calc.a |+| hdr.calc.b); }
    action subtract_saturating() { reply(hdr.calc.a |-| hdr.calc.b); }
    action shift_left() { reply(hdr.calc.a << (bit<8>) hdr.calc.b); }
    action shift_right() { reply(hdr.calc.a >> (bit<8>) hdr.calc.b); }
    action arithmetic_shift_right() { reply((bit<32>) ((int<32>) hdr.calc.a >> (bit<8>) hdr.calc.b)); }
    action less() { reply((int<32>) hdr.calc.a < (int<32>) hdr.calc.b ? 32w1 : 0); }

    action drop() {
        mark_to_drop(standard_metadata);
    }

    table operations {
        key = {
            hdr.calc.operation: exact;
        }
        actions = {
            add; subtract; multiply; and; or; xor; add_saturating; subtract_saturating;
            shift_left; shift_right; arithmetic_shift_right; less; drop;
        }
        const default_action = drop();
        const entries = {
            0x2b: add();                     // +
            0x2d: subtract();                // -
            0x2a: multiply();                // *
            0x26: and();                     // &
            0x7c: or();                      // |
            0x5e: xor();                     // ^
            0x50: add_saturating();          // P
            0x4d: subtract_saturating();     // M
            0x4c: shift_left();              // L
            0x52: shift_right();             // R
            0x41: arithmetic_shift_right();  // A
            0x3c: less();                    // <
        }
    }

    apply {
        if (hdr.calc.isValid()) {
            operations.apply();
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
        packet.emit(hdr.calc);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
