// Sizes, code points and indices. Those that dlcp/ decides too (class numbers, version, packet type) are compared with it by a test.
#ifndef CONSTANTS_P4
#define CONSTANTS_P4

typedef bit<48> mac_t;
typedef bit<9>  port_t;
typedef bit<3>  queue_t;
typedef bit<10> group_t;
typedef bit<19> depth_t;    // packets in a queue, as wide as v1model's queue depths
typedef bit<12> cell_t;     // port ++ queue
typedef bit<5>  slot_t;     // index into the counters per class

const bit<16> ETHERTYPE_IPV4    = 0x0800;
const bit<16> ETHERTYPE_ARP     = 0x0806;
const bit<16> ETHERTYPE_VLAN    = 0x8100;
const bit<16> ETHERTYPE_QINQ    = 0x88a8;
const bit<16> ETHERTYPE_IPV6    = 0x86dd;

const bit<8>  PROTOCOL_TCP      = 6;
const bit<8>  PROTOCOL_UDP      = 17;
const bit<8>  PROTOCOL_ICMPV6   = 58;

const bit<2>  ECN_NOT_ECT       = 0;    // RFC 3168
const bit<2>  ECN_CE            = 3;

const bit<32> ETHERNET_BYTES    = 14;
const bit<32> VLAN_BYTES        = 4;
const bit<16> IPV4_BYTES        = 20;
const bit<16> IPV6_BYTES        = 40;
const bit<16> UDP_BYTES         = 8;
const bit<16> DLCP_BYTES        = 48;
const bit<16> DLCP_UDP_LENGTH   = UDP_BYTES + DLCP_BYTES;

const bit<16> DLCP_START        = 0x1000;   // first two bytes: version 1, reserved bits 0
const bit<16> DLCP_START_MASK   = 0xf003;
const bit<4>  DLCP_TYPE_DATA    = 0;
const bit<3>  DLCP_CONTROL      = 7;    // class of control, retransmissions and trimmed headers

const queue_t QUEUE_FIRST       = 7;    // served first
const queue_t QUEUE_LAST        = 0;

const bit<2>  SPRAY_ROUND_ROBIN = 1;    // anything else: one path a flow
const bit<2>  SPRAY_RANDOM      = 2;

const bit<32> SLOTS             = 24;   // droppable and protected DLCP by class, ordinary traffic by queue
const bit<3>  DISCARD_MALFORMED = 0;
const bit<3>  DISCARD_UNKNOWN   = 1;
const bit<3>  DISCARD_REFUSED   = 2;
const bit<3>  DISCARD_POLICED   = 3;
const bit<3>  DISCARD_EXPIRED   = 4;
const bit<3>  DISCARD_HAIRPIN   = 5;
const bit<32> DISCARDS          = 8;

const depth_t NEVER             = 0x7ffff;
const bit<32> DEPTH_CELLS       = 4096;
const bit<13> PATIENCE          = 255;  // packets turned away in a row before a depth counts as stale
const bit<32> GROUPS            = 1024;

#endif
