// All kinds of match in one pipeline: each table that hits writes its entry's number into the packet; a parser value set marks it.

#include "common.p4"

header fields_t {
    bit<8>  a;
    bit<8>  b;
    bit<16> c;  // BMv2 takes no prefixes of fields that do not end at a byte
    bit<4>  d;
    bit<4>  pad;
    bit<8>  known;
    bit<8>  exact_entry;
    bit<8>  prefix_entry;
    bit<8>  ternary_entry;
    bit<8>  range_entry;
    bit<8>  mixed_entry;
    bit<8>  fixed_entry;
}

struct headers_t {
    ethernet_t ethernet;
    fields_t   fields;
}

struct metadata_t {
    bit<8> known;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    value_set<bit<16>>(4) known_types;
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.fields);
        transition select(hdr.ethernet.ether_type) {
            known_types: mark;
            0x7000 &&& 0xf000: mark_range;
            default: accept;
        }
    }
    state mark {
        meta.known = 1;
        transition accept;
    }
    state mark_range {
        meta.known = 2;
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) prefix_counter;
    direct_counter(CounterType.packets) ternary_counter;

    action exact_hit(bit<8> entry) { hdr.fields.exact_entry = entry; }
    action prefix_hit(bit<8> entry) { hdr.fields.prefix_entry = entry; }
    action ternary_hit(bit<8> entry) { hdr.fields.ternary_entry = entry; }
    action range_hit(bit<8> entry) { hdr.fields.range_entry = entry; }
    action mixed_hit(bit<8> entry) { hdr.fields.mixed_entry = entry; }
    action fixed_hit(bit<8> entry) { hdr.fields.fixed_entry = entry; }

    table exact_table {
        key = {
            hdr.fields.a: exact;
            hdr.fields.d: exact;
        }
        actions = {
            exact_hit;
        }
        default_action = exact_hit(0);
    }

    table prefix_table {
        key = {
            hdr.fields.d: exact;
            hdr.fields.c: lpm;
        }
        actions = {
            prefix_hit;
        }
        default_action = prefix_hit(0);
        counters = prefix_counter;
    }

    table ternary_table {
        key = {
            hdr.fields.a: ternary;
            hdr.fields.c: ternary;
            hdr.fields.d: ternary;
        }
        actions = {
            ternary_hit;
            NoAction;
        }
        default_action = NoAction();
        counters = ternary_counter;
    }

    table range_table {
        key = {
            hdr.fields.a: range;
            hdr.fields.c: range;
            hdr.fields.d: range;
        }
        actions = {
            range_hit;
        }
        default_action = range_hit(0);
    }

    table mixed_table {
        key = {
            hdr.fields.d: exact;
            hdr.fields.a: ternary;
            hdr.fields.b: optional;
            hdr.fields.c: lpm;
            standard_metadata.ingress_port: range;
        }
        actions = {
            mixed_hit;
        }
        default_action = mixed_hit(0);
    }

    table fixed_table {
        key = {
            hdr.fields.a: ternary;
            hdr.fields.c[15:8]: range;
            hdr.ethernet.isValid(): exact;
        }
        actions = {
            fixed_hit;
        }
        const default_action = fixed_hit(255);
        const entries = {
            (0x80 &&& 0x80, 0 .. 15, true): fixed_hit(1);
            (0x81 &&& 0x81, 8 .. 200, true): fixed_hit(2);
            (_, 100, true): fixed_hit(3);
            (0x00 &&& 0x01, _, true): fixed_hit(4);
        }
    }

    apply {
        hdr.fields.known = meta.known;
        if (hdr.fields.isValid()) {
            exact_table.apply();
            prefix_table.apply();
            switch (ternary_table.apply().action_run) {
                NoAction: { hdr.fields.ternary_entry = 0xee; }
                default: { }
            }
            range_table.apply();
            mixed_table.apply();
            fixed_table.apply();
        }
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }
}

NO_EGRESS(egress)
NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.fields);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
