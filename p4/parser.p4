// Ethernet, up to two VLAN tags, IPv4 or IPv6, TCP or UDP, DLCP. Whatever does not fit stays payload and is ordinary traffic: options,
// extension headers, fragments, short packets.

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ARP:  arp;
            ETHERTYPE_VLAN: vlan;
            ETHERTYPE_QINQ: outer_vlan;
            default:        accept;
        }
    }

    state outer_vlan {
        packet.extract(hdr.outer_vlan);
        transition select(hdr.outer_vlan.ether_type) {
            ETHERTYPE_VLAN: vlan;
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ARP:  arp;
            default:        accept;
        }
    }

    state vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ARP:  arp;
            default:        accept;
        }
    }

    state arp {
        meta.urgent = true;
        transition accept;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        // No options, no fragment ("don't fragment" does not matter).
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (0x45, 0 &&& 0x3fff, PROTOCOL_UDP): udp;
            (0x45, 0 &&& 0x3fff, PROTOCOL_TCP): tcp;
            default: accept;
        }
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.next_header, hdr.ipv6.hop_limit) {
            (PROTOCOL_UDP, _):      udp;
            (PROTOCOL_TCP, _):      tcp;
            (PROTOCOL_ICMPV6, 255): arp;    // RFC 4861: only neighbour discovery insists on a hop limit of 255
            default:                accept;
        }
    }

    state tcp {
        packet.extract(hdr.tcp);
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.length) {
            0 .. DLCP_UDP_LENGTH - 1: accept;
            default: peek;
        }
    }

    // DLCP runs on any port: its version and the bits that it reserves tell it from most else; the table of jobs tells it for sure.
    state peek {
        transition select(packet.lookahead<bit<16>>()) {
            DLCP_START &&& DLCP_START_MASK: dlcp;
            default: accept;
        }
    }

    state dlcp {
        packet.extract(hdr.dlcp);
        transition accept;
    }
}
