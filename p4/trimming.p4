// Trimming: the payload goes, the header goes on in class 7 and tells the receiver at once what it lacks.

control Trimming(inout headers_t hdr, in metadata_t meta) {
    apply {
        bit<32> length = ETHERNET_BYTES + (bit<32>)DLCP_UDP_LENGTH;
        if (hdr.outer_vlan.isValid()) {
            length = length + VLAN_BYTES;
        }
        if (hdr.vlan.isValid()) {
            length = length + VLAN_BYTES;
        }
        hdr.dlcp.trimmed = 1;
        hdr.dlcp.priority = DLCP_CONTROL;
        hdr.udp.length = DLCP_UDP_LENGTH;
        // The payload is no longer there to be subtracted, so the sum is taken anew.
        bit<16> sum = 0;
        if (hdr.ipv4.isValid()) {
            length = length + (bit<32>)IPV4_BYTES;
            bit<16> before = hdr.ipv4.version_ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn;
            hdr.ipv4.dscp = meta.trim_dscp;
            hdr.ipv4.checksum = adjusted(hdr.ipv4.checksum, before, hdr.ipv4.version_ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn);
            hdr.ipv4.checksum = adjusted(hdr.ipv4.checksum, hdr.ipv4.total_length, IPV4_BYTES + DLCP_UDP_LENGTH);
            hdr.ipv4.total_length = IPV4_BYTES + DLCP_UDP_LENGTH;
            hash(sum, HashAlgorithm.csum16, 16w0,
                 { hdr.ipv4.src_addr, hdr.ipv4.dst_addr, 8w0, PROTOCOL_UDP, hdr.udp.length,
                   hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length, hdr.dlcp }, 32w0x10000);
        } else {
            length = length + (bit<32>)IPV6_BYTES;
            hdr.ipv6.dscp = meta.trim_dscp;
            hdr.ipv6.payload_length = DLCP_UDP_LENGTH;
            hash(sum, HashAlgorithm.csum16, 16w0,
                 { hdr.ipv6.src_addr, hdr.ipv6.dst_addr, 8w0, PROTOCOL_UDP, hdr.udp.length,
                   hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length, hdr.dlcp }, 32w0x10000);
        }
        if (hdr.udp.checksum != 0) {
            hdr.udp.checksum = as_udp(sum);
        }
        truncate(length);
    }
}
