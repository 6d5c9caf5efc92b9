// ECN: who can react to congestion is told of it before anything has to be dropped (RFC 3168).

control Marking(inout headers_t hdr, in metadata_t meta) {
    apply {
        if (meta.mark) {
            if (hdr.ipv4.isValid()) {
                if (hdr.ipv4.ecn != ECN_NOT_ECT && hdr.ipv4.ecn != ECN_CE) {
                    bit<16> before = hdr.ipv4.version_ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn;
                    hdr.ipv4.ecn = ECN_CE;
                    hdr.ipv4.checksum = adjusted(hdr.ipv4.checksum, before, hdr.ipv4.version_ihl ++ hdr.ipv4.dscp ++ ECN_CE);
                    marked.count((bit<32>)meta.slot);
                }
            } else if (hdr.ipv6.isValid()) {
                if (hdr.ipv6.ecn != ECN_NOT_ECT && hdr.ipv6.ecn != ECN_CE) {
                    hdr.ipv6.ecn = ECN_CE;
                    marked.count((bit<32>)meta.slot);
                }
            }
        }
    }
}
