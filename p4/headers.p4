// Headers, and what is known of a packet on its way through the switch.
#ifndef HEADERS_P4
#define HEADERS_P4

header ethernet_t {
    mac_t   dst_addr;
    mac_t   src_addr;
    bit<16> ether_type;
}

header vlan_t {
    bit<16> tag;
    bit<16> ether_type;
}

// Fields that are only looked at together are one field: the fewer there are, the faster the program runs on a CPU.
header ipv4_t {
    bit<8>  version_ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<16> fragment;           // flags, offset
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

header ipv6_t {
    bit<4>   version;
    bit<6>   dscp;
    bit<2>   ecn;
    bit<20>  flow_label;
    bit<16>  payload_length;
    bit<8>   next_header;
    bit<8>   hop_limit;
    bit<128> src_addr;
    bit<128> dst_addr;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

header tcp_t {
    bit<16>  src_port;
    bit<16>  dst_port;
    bit<128> rest;
}

// The table of dlcp/wire/header.py; runs of fields that mean nothing to a switch are one field each.
header dlcp_t {
    bit<4>   version;
    bit<4>   type;
    bit<3>   priority;
    bit<1>   protected;
    bit<1>   trimmed;
    bit<1>   retransmission;
    bit<2>   reserved;
    bit<16>  check;             // leaves out what a switch may change
    bit<32>  ranks;             // source, destination
    bit<64>  cookie;
    bit<240> message;           // operation to protected_packets
    bit<16>  queue_depth;
}

struct headers_t {
    ethernet_t ethernet;
    vlan_t     outer_vlan;
    vlan_t     vlan;
    ipv4_t     ipv4;
    ipv6_t     ipv6;
    udp_t      udp;
    tcp_t      tcp;
    dlcp_t     dlcp;
}

struct metadata_t {
    bool     urgent;            // ARP or neighbour discovery
    bool     dlcp;              // treated by its DLCP header
    bool     demoted;           // into the queue served last
    bit<2>   color;             // verdict of the policer
    bit<1>   protected;         // anything but droppable DLCP data
    slot_t   slot;
    bit<2>   spray;
    bool     stamp;
    bool     routed;
    group_t  group;             // 0: none
    bit<32>  salt;
    bit<32>  selector;
    depth_t  room;              // depth from which droppable packets are turned away
    depth_t  mark_at;
    bool     mark;
    bool     trim;
    bit<6>   trim_dscp;
}

#endif
