// Selective dropping: droppable packets are turned away (dropped or trimmed) from a queue that is too long, the others never.

control Dropping(inout metadata_t meta, inout standard_metadata_t std) {
    bool trims = false;

    action unlimited() {
        meta.room = NEVER;
        meta.mark_at = NEVER;
    }

    action drop_from(depth_t drop_at, depth_t mark_at) {
        meta.room = drop_at;
        meta.mark_at = mark_at;
    }

    action trim_from(depth_t trim_at, depth_t mark_at, bit<6> dscp) {
        meta.room = trim_at;
        meta.mark_at = mark_at;
        meta.trim_dscp = dscp;
        trims = true;
    }

    table limits {
        key = {
            std.egress_spec: ternary @name("port");
            std.priority:    exact   @name("queue");
            meta.protected:  exact   @name("protected");
        }
        actions = { unlimited; drop_from; trim_from; }
        default_action = unlimited();
        size = 1024;
    }

    apply {
        limits.apply();
        cell_t cell = std.egress_spec ++ std.priority;
        bit<32> known;
        queue_depths.read(known, (bit<32>)cell);
        depth_t depth = known[18:0];
        if (meta.protected == 0 && depth >= meta.room) {
            // If nothing left the queue for very long, the depth may be stale (the port was down, the queue was flushed): one packet
            // goes in, and egress will tell.
            if (known[31:19] < PATIENCE) {
                queue_depths.write((bit<32>)cell, known + (1 << 19));
                if (!trims) {
                    dropped.count((bit<32>)meta.slot);
                    mark_to_drop(std);
                    exit;
                }
                meta.trim = true;
                std.priority = QUEUE_FIRST;
                cell = std.egress_spec ++ QUEUE_FIRST;
                queue_depths.read(known, (bit<32>)cell);
                depth = known[18:0];
            }
        }
        meta.mark = depth >= meta.mark_at && !meta.trim;
        queue_depths.write((bit<32>)cell, 13w0 ++ (depth + 1));
    }
}
