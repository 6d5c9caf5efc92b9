// Link monitoring: probes that are source-routed collect, at each port they leave by, the bytes sent since the last probe.

#include "common.p4"

const bit<16> ETHERTYPE_PROBE = 0x0812;
const bit<32> PORTS = 512;

#define MAX_HOPS 6

header probe_t {
    bit<8> hops;
}

header reading_t {
    bit<1>  last;
    bit<7>  switch_id;
    bit<8>  port;
    bit<32> bytes;
    bit<48> last_time;
    bit<48> now;
}

header forward_t {
    bit<8> port;
}

struct headers_t {
    ethernet_t          ethernet;
    ipv4_t              ipv4;
    probe_t             probe;
    reading_t[MAX_HOPS] readings;
    forward_t[MAX_HOPS] forwards;
}

struct metadata_t {
    bit<8> port;
    bit<8> remaining;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_PROBE: parse_probe;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
    state parse_probe {
        packet.extract(hdr.probe);
        meta.remaining = hdr.probe.hops + 1;
        transition select(hdr.probe.hops) {
            0: parse_forward;
            default: parse_reading;
        }
    }
    state parse_reading {
        packet.extract(hdr.readings.next);
        transition select(hdr.readings.last.last) {
            1: parse_forward;
            default: parse_reading;
        }
    }
    state parse_forward {
        packet.extract(hdr.forwards.next);
        meta.remaining = meta.remaining - 1;
        meta.port = hdr.forwards.last.port;
        transition select(meta.remaining) {
            0: accept;
            default: parse_forward;
        }
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

    table routes {
        key = {
            hdr.ipv4.dst_addr: lpm;
        }
        actions = {
            forward;
            drop;
        }
        default_action = drop();
    }

    apply {
        if (hdr.ipv4.isValid()) {
            routes.apply();
        } else if (hdr.probe.isValid() && standard_metadata.parser_error == error.NoError) {
            standard_metadata.egress_spec = (bit<9>) meta.port;
            hdr.probe.hops = hdr.probe.hops + 1;
        } else {
            drop();
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<32>>(PORTS) bytes_sent;
    register<bit<48>>(PORTS) last_probe;

    action set_switch_id(bit<7> switch_id) {
        hdr.readings[0].switch_id = switch_id;
    }

    table identity {
        actions = {
            set_switch_id;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        bit<32> bytes;
        bit<48> last_time;
        bit<48> now = standard_metadata.egress_global_timestamp;
        bit<32> port = (bit<32>) standard_metadata.egress_port;
        bytes_sent.read(bytes, port);
        bytes = bytes + standard_metadata.packet_length;
        bytes_sent.write(port, hdr.probe.isValid() ? 32w0 : bytes);
        if (hdr.probe.isValid()) {
            hdr.readings.push_front(1);
            hdr.readings[0].setValid();
            hdr.readings[0].last = hdr.probe.hops == 1 ? 1w1 : 0;
            identity.apply();
            hdr.readings[0].port = (bit<8>) standard_metadata.egress_port;
            hdr.readings[0].bytes = bytes;
            last_probe.read(last_time, port);
            last_probe.write(port, now);
            hdr.readings[0].last_time = last_time;
            hdr.readings[0].now = now;
        }
    }
}

NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.probe);
        packet.emit(hdr.readings);
        packet.emit(hdr.forwards);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
