// Job isolation: which packets are treated as DLCP at all, and how much a job may send.

control Isolation(in headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_meter<bit<2>>(MeterType.bytes)             job_meter;
    direct_counter(CounterType.packets_and_bytes)     job_packets;
    bit<1> policed_hard = 0;

    action discard(in bit<3> reason) {
        discarded.count((bit<32>)reason);
        mark_to_drop(std);
        exit;
    }

    action permit() {
        meta.dlcp = true;
    }

    action police(bit<1> hard) {
        meta.dlcp = true;
        policed_hard = hard;
        job_meter.read(meta.color);
    }

    action demote() {
        meta.demoted = true;
    }

    action refuse() {
        discard(DISCARD_REFUSED);
    }

    table jobs {
        key = {
            hdr.dlcp.cookie:  ternary @name("cookie");
            std.ingress_port: ternary @name("port");
            hdr.udp.dst_port: range   @name("udp_port");
        }
        actions = { permit; police; demote; refuse; }
        default_action = permit();
        meters = job_meter;
        counters = job_packets;
        size = 256;
    }

    apply {
        if (hdr.dlcp.isValid()) {
            jobs.apply();
            if (meta.color != 0) {
                // What is protected is not dropped by a switch, except of a job that has this coming.
                if (meta.color == 2 && (policed_hard == 1 || hdr.dlcp.protected == 0)) {
                    discard(DISCARD_POLICED);
                }
                meta.demoted = true;
            }
        }
    }
}
