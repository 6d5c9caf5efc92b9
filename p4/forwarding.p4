// Where a packet goes: bridged by MAC address, or routed by IP address if it is sent to the switch's own MAC address.

control Forwarding(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action discard(in bit<3> reason) {
        discarded.count((bit<32>)reason);
        mark_to_drop(std);
        exit;
    }

    action to_port(port_t port) {
        std.egress_spec = port;
    }

    action to_neighbor(port_t port, mac_t src_addr, mac_t dst_addr) {
        std.egress_spec = port;
        hdr.ethernet.src_addr = src_addr;
        hdr.ethernet.dst_addr = dst_addr;
    }

    action to_group(group_t group, bit<32> salt) {
        meta.group = group;
        meta.salt = salt;
    }

    action flood(bit<16> group) {
        std.mcast_grp = group;
    }

    action route() {
        meta.routed = true;
    }

    table bridge {
        key = { hdr.ethernet.dst_addr: exact @name("dst_addr"); }
        actions = { to_port; to_group; flood; route; discard(DISCARD_UNKNOWN); }
        default_action = discard(DISCARD_UNKNOWN);
        size = 8192;
    }

    table ipv4_routes {
        key = { hdr.ipv4.dst_addr: lpm @name("dst_addr"); }
        actions = { to_neighbor; to_group; discard(DISCARD_UNKNOWN); }
        default_action = discard(DISCARD_UNKNOWN);
        size = 4096;
    }

    table ipv6_routes {
        key = { hdr.ipv6.dst_addr: lpm @name("dst_addr"); }
        actions = { to_neighbor; to_group; discard(DISCARD_UNKNOWN); }
        default_action = discard(DISCARD_UNKNOWN);
        size = 4096;
    }

    apply {
        if (!hdr.ethernet.isValid()) {
            discard(DISCARD_MALFORMED);
        }
        bridge.apply();
        if (meta.routed) {
            if (hdr.ipv4.isValid()) {
                if (hdr.ipv4.version_ihl < 0x45 || hdr.ipv4.version_ihl > 0x4f) {
                    discard(DISCARD_MALFORMED);
                }
                if (hdr.ipv4.ttl <= 1) {
                    discard(DISCARD_EXPIRED);
                }
                ipv4_routes.apply();
                bit<16> before = hdr.ipv4.ttl ++ hdr.ipv4.protocol;
                hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
                hdr.ipv4.checksum = adjusted(hdr.ipv4.checksum, before, hdr.ipv4.ttl ++ hdr.ipv4.protocol);
            } else if (hdr.ipv6.isValid()) {
                if (hdr.ipv6.version != 6) {
                    discard(DISCARD_MALFORMED);
                }
                if (hdr.ipv6.hop_limit <= 1) {
                    discard(DISCARD_EXPIRED);
                }
                ipv6_routes.apply();
                hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
            } else {
                discard(DISCARD_UNKNOWN);
            }
        }
    }
}
