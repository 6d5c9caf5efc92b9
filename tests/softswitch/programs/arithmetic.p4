// Arithmetic of odd widths and both signs, casts, slices, concatenation, and every hash of v1model; the packet brings the operands and
// takes the results home.

#include "common.p4"

header operands_t {
    bit<8>  a;
    bit<8>  b;
    bit<13> c;
    bit<3>  shift;
    bit<32> d;
    bit<64> e;
}

header small_t {
    bit<8>  sum;
    bit<8>  difference;
    bit<8>  product;
    bit<8>  negated;
    bit<8>  inverted;
    bit<8>  saturated_sum;
    bit<8>  saturated_difference;
    bit<8>  signed_sum;
    bit<8>  signed_difference;
    bit<8>  shifted_left;
    bit<8>  shifted_right;
    bit<8>  shifted_signed;
    bit<1>  less;
    bit<1>  signed_less;
    bit<1>  equal;
    bit<1>  at_least;
    bit<4>  pad;
}

header wide_t {
    bit<13> odd_sum;
    bit<13> odd_product;
    bit<13> odd_shift;
    bit<1>  parity;
    bit<24> joined;
    bit<16> sliced;
    bit<64> widened;
    bit<64> chosen;
    bit<32> narrowed;
    bit<16> divided;
}

header hashes_t {
    bit<16> crc16;
    bit<32> crc32;
    bit<16> csum16;
    bit<16> xor16;
    bit<32> identity;
    bit<16> based;
    bit<16> nothing;
}

struct headers_t {
    ethernet_t ethernet;
    operands_t in_;
    small_t    small;
    wide_t     wide;
    hashes_t   hashes;
}

struct metadata_t {
    int<8> x;
    int<8> y;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.in_);
        transition accept;
    }
}

NO_CHECKSUM(Verify)

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action small() {
        hdr.small.setValid();
        hdr.small.sum = hdr.in_.a + hdr.in_.b;
        hdr.small.difference = hdr.in_.a - hdr.in_.b;
        hdr.small.product = hdr.in_.a * hdr.in_.b;
        hdr.small.negated = -hdr.in_.a;
        hdr.small.inverted = ~hdr.in_.a ^ (hdr.in_.b & 0x5a) | 1;
        hdr.small.saturated_sum = hdr.in_.a |+| hdr.in_.b;
        hdr.small.saturated_difference = hdr.in_.a |-| hdr.in_.b;
        meta.x = (int<8>) hdr.in_.a;
        meta.y = (int<8>) hdr.in_.b;
        hdr.small.signed_sum = (bit<8>) (meta.x |+| meta.y);
        hdr.small.signed_difference = (bit<8>) (meta.x |-| meta.y);
        hdr.small.shifted_left = hdr.in_.a << hdr.in_.shift;
        hdr.small.shifted_right = hdr.in_.a >> hdr.in_.shift;
        hdr.small.shifted_signed = (bit<8>) (meta.x >> hdr.in_.shift);
        hdr.small.less = hdr.in_.a < hdr.in_.b ? 1w1 : 0;
        hdr.small.signed_less = meta.x < meta.y ? 1w1 : 0;
        hdr.small.equal = hdr.in_.a == hdr.in_.b || hdr.in_.c == 0 ? 1w1 : 0;
        hdr.small.at_least = hdr.in_.a >= hdr.in_.b && !(hdr.in_.shift != 0) ? 1w1 : 0;
        hdr.small.pad = 0;
    }

    action wide() {
        hdr.wide.setValid();
        hdr.wide.odd_sum = hdr.in_.c + (bit<13>) hdr.in_.a;
        hdr.wide.odd_product = hdr.in_.c * 13w173;
        hdr.wide.odd_shift = (bit<13>) ((int<13>) hdr.in_.c >> 3) ^ (hdr.in_.c << 5);
        hdr.wide.parity = hdr.in_.c[0:0] ^ hdr.in_.d[31:31];
        hdr.wide.joined = hdr.in_.b ++ hdr.in_.a ++ hdr.in_.shift ++ hdr.in_.c[9:5];
        hdr.wide.sliced = hdr.in_.d[23:8];
        hdr.wide.sliced[7:4] = hdr.in_.a[3:0];
        hdr.wide.widened = (bit<64>) (int<64>) (int<32>) hdr.in_.d + hdr.in_.e;
        hdr.wide.chosen = hdr.in_.d > 0x7fffffff ? hdr.in_.e : ~hdr.in_.e;
        hdr.wide.narrowed = (bit<32>) (hdr.in_.e >> 17);
        hdr.wide.divided = 1000 / 7 + (bit<16>) hdr.in_.b % 16;
    }

    action hashes() {
        hdr.hashes.setValid();
        hash(hdr.hashes.crc16, HashAlgorithm.crc16, 16w0, { hdr.in_.a, hdr.in_.d, hdr.in_.e }, 32w0x10000);
        hash(hdr.hashes.crc32, HashAlgorithm.crc32, 32w0, { hdr.in_.b, hdr.in_.c, hdr.in_.shift, hdr.in_.e }, 64w0x100000000);
        hash(hdr.hashes.csum16, HashAlgorithm.csum16, 16w0, { hdr.in_.d, hdr.in_.e, hdr.in_.a, hdr.in_.b }, 32w0x10000);
        hash(hdr.hashes.xor16, HashAlgorithm.xor16, 16w0, { hdr.in_.d, hdr.in_.e }, 32w0x10000);
        hash(hdr.hashes.identity, HashAlgorithm.identity, 32w0, { hdr.in_.d }, 64w0x100000000);
        hash(hdr.hashes.based, HashAlgorithm.crc32, 16w100, { hdr.in_.c, hdr.in_.shift, hdr.in_.d }, 16w10);
        hash(hdr.hashes.nothing, HashAlgorithm.crc16, 16w7, { hdr.in_.a }, 16w0);
    }

    apply {
        if (hdr.in_.isValid()) {
            small();
            wide();
            hashes();
        }
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }
}

NO_EGRESS(egress)
NO_CHECKSUM(Compute)

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.in_);
        packet.emit(hdr.small);
        packet.emit(hdr.wide);
        packet.emit(hdr.hashes);
    }
}

V1Switch(Parse(), Verify(), ingress(), egress(), Compute(), Deparse()) main;
