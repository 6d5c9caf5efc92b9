// Headers and empty blocks that the programs in this folder share.

#include <core.p4>
#include <v1model.p4>

#define ETHERTYPE_IPV4 16w0x0800
#define PROTOCOL_TCP 8w6
#define PROTOCOL_UDP 8w17

// v1model's instance types, as simple_switch has them.
#define NORMAL 32w0
#define INGRESS_CLONE 32w1
#define EGRESS_CLONE 32w2
#define RECIRCULATED 32w4
#define REPLICATED 32w5
#define RESUBMITTED 32w6

header ethernet_t {
    bit<48> dst_addr;
    bit<48> src_addr;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

header ports_t {
    bit<16> src_port;
    bit<16> dst_port;
}

#define IPV4_FIELDS(ip) { ip.version, ip.ihl, ip.dscp, ip.ecn, ip.total_length, ip.identification, ip.flags, \
    ip.fragment_offset, ip.ttl, ip.protocol, ip.src_addr, ip.dst_addr }

#define NO_CHECKSUM(name) control name(inout headers_t hdr, inout metadata_t meta) { apply { } }

#define NO_EGRESS(name) \
    control name(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) { apply { } }
