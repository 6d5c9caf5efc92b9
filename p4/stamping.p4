// The deepest queue on the way, written into the header.

control Stamping(inout headers_t hdr, in standard_metadata_t std) {
    apply {
        bit<16> depth = 0xffff;
        if (std.enq_qdepth < 0xffff) {
            depth = std.enq_qdepth[15:0];
        }
        if (depth > hdr.dlcp.queue_depth) {
            if (hdr.udp.checksum != 0) {
                hdr.udp.checksum = as_udp(adjusted(hdr.udp.checksum, hdr.dlcp.queue_depth, depth));
            }
            hdr.dlcp.queue_depth = depth;
        }
    }
}
