// Class to queue, and how packets of the class are treated.

control Classification(in headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    bit<6> dscp = 0;

    action treat(queue_t queue, bit<2> spray, bit<1> stamp) {
        std.priority = queue;
        meta.spray = spray;
        meta.stamp = stamp == 1;
    }

    action assign(queue_t queue) {
        std.priority = queue;
    }

    table dlcp_classes {
        key = { hdr.dlcp.priority: exact @name("class"); }
        actions = { treat; NoAction; }
        const default_action = NoAction();
        size = 8;
    }

    table dscp_classes {
        key = { dscp: exact @name("dscp"); }
        actions = { assign; }
        default_action = assign(QUEUE_LAST);
        size = 64;
    }

    apply {
        bool by_header = false;
        meta.protected = 1;
        if (meta.dlcp) {
            by_header = dlcp_classes.apply().hit;
            if (hdr.dlcp.type == DLCP_TYPE_DATA && hdr.dlcp.trimmed == 0) {
                meta.protected = hdr.dlcp.protected;
            }
            meta.slot = 1w0 ++ meta.protected ++ hdr.dlcp.priority;
        }
        if (!by_header) {
            if (meta.urgent) {
                std.priority = QUEUE_FIRST;
            } else if (hdr.ipv4.isValid()) {
                dscp = hdr.ipv4.dscp;
                dscp_classes.apply();
            } else if (hdr.ipv6.isValid()) {
                dscp = hdr.ipv6.dscp;
                dscp_classes.apply();
            }
        }
        if (meta.demoted) {
            std.priority = QUEUE_LAST;
        }
        if (!meta.dlcp) {
            meta.slot = 2w2 ++ std.priority;
        }
    }
}
