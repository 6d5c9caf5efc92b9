// Which of several paths: one a flow, or the next one for every packet, in turn or at random.

control Spraying(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<32>>(GROUPS) turns;
    // The target skips members whose watch port is down.
    @max_group_size(256)
    action_selector(HashAlgorithm.identity, 32w8192, 32w32) members;

    action discard(in bit<3> reason) {
        discarded.count((bit<32>)reason);
        mark_to_drop(std);
        exit;
    }

    action path(port_t port) {
        std.egress_spec = port;
        meta.group = 0;
    }

    action routed_path(port_t port, mac_t src_addr, mac_t dst_addr) {
        std.egress_spec = port;
        meta.group = 0;
        hdr.ethernet.src_addr = src_addr;
        hdr.ethernet.dst_addr = dst_addr;
    }

    table paths {
        key = {
            meta.group:    exact @name("group");
            meta.selector: selector;
        }
        actions = { path; routed_path; }
        implementation = members;
        size = GROUPS;
    }

    apply {
        if (meta.group != 0) {
            if (meta.spray == SPRAY_ROUND_ROBIN) {
                turns.read(meta.selector, (bit<32>)meta.group);
                turns.write((bit<32>)meta.group, meta.selector + 1);
            } else if (meta.spray == SPRAY_RANDOM) {
                random(meta.selector, 0, 0xffff);
            } else {
                bit<32> ports = 0;
                if (hdr.udp.isValid()) {
                    ports = hdr.udp.src_port ++ hdr.udp.dst_port;
                } else if (hdr.tcp.isValid()) {
                    ports = hdr.tcp.src_port ++ hdr.tcp.dst_port;
                }
                if (hdr.ipv4.isValid()) {
                    hash(meta.selector, HashAlgorithm.crc32, 32w0,
                         { meta.salt, hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.ipv4.protocol, ports }, 32w0xffffffff);
                } else if (hdr.ipv6.isValid()) {
                    hash(meta.selector, HashAlgorithm.crc32, 32w0,
                         { meta.salt, hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.ipv6.next_header, ports }, 32w0xffffffff);
                } else {
                    hash(meta.selector, HashAlgorithm.crc32, 32w0,
                         { meta.salt, hdr.ethernet.src_addr, hdr.ethernet.dst_addr }, 32w0xffffffff);
                }
            }
            paths.apply();
            if (meta.group != 0) {
                // No such group, or none of its paths is up.
                discard(DISCARD_UNKNOWN);
            }
        }
        if (std.mcast_grp == 0 && std.egress_spec == std.ingress_port && !meta.routed) {
            discard(DISCARD_HAIRPIN);
        }
    }
}
