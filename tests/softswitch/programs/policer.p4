// Metering: an indirect meter by ingress port and a direct one by source; the worse colour goes into the DSCP, red may be dropped.

#include "common.p4"

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
}

struct metadata_t {
    bit<2> port_color;
    bit<2> source_color;
    bit<2> color;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    meter(16, MeterType.bytes) port_meter;
    direct_meter<bit<2>>(MeterType.packets) source_meter;

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action meter_source() {
        source_meter.read(meta.source_color);
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    table sources {
        key = {
            hdr.ipv4.src_addr: exact;
        }
        actions = {
            meter_source;
            NoAction;
        }
        default_action = NoAction();
        meters = source_meter;
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

    table colors {
        key = {
            meta.color: exact;
        }
        actions = {
            drop;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        if (hdr.ipv4.isValid()) {
            port_meter.execute_meter((bit<32>) standard_metadata.ingress_port, meta.port_color);
            sources.apply();
            stations.apply();
            meta.color = meta.port_color > meta.source_color ? meta.port_color : meta.source_color;
            hdr.ipv4.dscp = (bit<6>) meta.color;
            colors.apply();
        } else {
            drop();
        }
    }
}

NO_EGRESS(egress)

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
