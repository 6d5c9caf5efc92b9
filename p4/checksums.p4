// Checksums are adjusted where a field changes, never computed anew from what came in: an error on the way here stays visible behind.

// The checksum after one of the 16-bit words under it has changed: checksum - (new - old) in one's complement arithmetic, where each
// borrow costs another 1 (RFC 1624, equation 4, which is exact for checksums that are not -0).
bit<16> adjusted(in bit<16> checksum, in bit<16> old, in bit<16> new) {
    bit<16> change = new - old - (new < old ? 16w1 : 0);
    return checksum - change - (checksum < change ? 16w1 : 0);
}

// UDP's 0 means "none" (RFC 768), and its other form is sent in its place.
bit<16> as_udp(in bit<16> checksum) {
    return checksum == 0 ? 16w0xffff : checksum;
}

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control ComputeChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}
