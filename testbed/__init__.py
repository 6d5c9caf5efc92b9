"""Real training over emulated networks: topologies in network namespaces, P4 switches, cross traffic, reports."""
