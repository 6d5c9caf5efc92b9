"""The topology: hosts, switches, links, and which ranks run where; what a file may say, and what follows from it."""

from dlcp.topology.builders import Dumbbell, FatTree, LeafSpine, Shape, Star
from dlcp.topology.description import Host, Link, Switch, Topology
from dlcp.topology.graph import Arc, Graph
from dlcp.topology.measures import Bisection, FastDomains, bisection, fast_domains, oversubscription, worst_loads
from dlcp.topology.routes import Routes

__all__ = [
    "Arc",
    "Bisection",
    "Dumbbell",
    "FastDomains",
    "FatTree",
    "Graph",
    "Host",
    "LeafSpine",
    "Link",
    "Routes",
    "Shape",
    "Star",
    "Switch",
    "Topology",
    "bisection",
    "fast_domains",
    "oversubscription",
    "worst_loads",
]
