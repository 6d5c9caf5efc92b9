"""Random small networks, and slow but obvious answers about them."""

from hypothesis import strategies as st

from dlcp.topology import Host, Link, Switch, Topology
from dlcp.units import Buffer, Delay, Rate

RATES = [Rate.parse(text) for text in ("1 Mbit/s", "10 Mbit/s", "25 Mbit/s", "40 Mbit/s", "100 Mbit/s")]
RATE = st.sampled_from(RATES)


@st.composite
def networks(draw, most_switches=6, most_hosts=6, metrics=(1, 1, 2, 3), nics=True):
    """A connected network: a random tree of switches with further links, hosts on one or two of them, some links double."""
    switches = [f"s{index}" for index in range(draw(st.integers(1, most_switches)))]
    hosts = [f"h{index}" for index in range(draw(st.integers(2, most_hosts)))]
    pairs = [(switches[draw(st.integers(0, index - 1))], switches[index]) for index in range(1, len(switches))]
    further = st.tuples(st.sampled_from(switches), st.sampled_from(switches)).filter(lambda pair: pair[0] != pair[1])
    if len(switches) > 1:
        pairs += draw(st.lists(further, max_size=5))
    for host in hosts:
        for switch in draw(st.lists(st.sampled_from(switches), min_size=1, max_size=2)):
            pairs.append(draw(st.permutations([host, switch])))
    seen, links = set(), []
    for a, b in pairs:
        links.append(
            Link(
                a=a,
                b=b,
                rate=draw(RATE),
                delay=Delay(draw(st.integers(0, 10**9))),
                buffer=draw(st.sampled_from([Buffer(64, "packets"), Buffer(65_536, "bytes")])),
                loss=draw(st.sampled_from([0.0, 0.01])),
                metric=draw(st.sampled_from(metrics)),
                parallel=frozenset((a, b)) in seen,
            )
        )
        seen.add(frozenset((a, b)))
    ranks = draw(st.permutations(range(draw(st.integers(0, 2 * len(hosts))))))
    cuts = sorted(draw(st.lists(st.integers(0, len(ranks)), min_size=len(hosts) - 1, max_size=len(hosts) - 1)))
    edges = [0, *cuts, len(ranks)]
    return Topology(
        hosts=tuple(
            Host(
                name=host,
                ranks=tuple(ranks[edges[index] : edges[index + 1]]),
                nic=draw(st.one_of(st.just("auto"), RATE)) if nics else "auto",
            )
            for index, host in enumerate(hosts)
        ),
        switches=tuple(Switch(name=switch) for switch in switches),
        links=tuple(links),
    )


def every_path(topology, a, b):
    """All ways from host a to host b that meet no node twice and pass through switches only, as tuples of arcs."""
    graph = topology.graph

    def onwards(node, met):
        for arc in graph.leaving(node):
            if arc.target == b:
                yield (arc,)
            elif arc.target not in met and not graph.is_host(arc.target):
                for rest in onwards(arc.target, met | {arc.target}):
                    yield (arc, *rest)

    return list(onwards(a, {a}))


def greatest_flow(topology, sources, targets):
    """What the hosts in ``sources`` can send to those in ``targets`` together, on any paths: augmenting paths, one at a time."""
    graph = topology.graph
    room = {}

    def add(a, b, capacity):
        room.setdefault(a, {}).setdefault(b, 0)
        room.setdefault(b, {}).setdefault(a, 0)
        room[a][b] += capacity

    for arc in graph.arcs:
        if arc.source in targets or arc.target in sources:
            continue
        if any(graph.is_host(node) and node not in sources | targets for node in (arc.source, arc.target)):
            continue
        add(arc.source, arc.target, arc.rate)
    for host in sources:
        add("from", host, int(topology.nics[host]))
    for host in targets:
        add(host, "to", int(topology.nics[host]))
    total = 0
    while True:
        came, front = {"from": None}, ["from"]
        while front and "to" not in came:
            node = front.pop(0)
            for other, left in room.get(node, {}).items():
                if left and other not in came:
                    came[other] = node
                    front.append(other)
        if "to" not in came:
            return total
        steps, node = [], "to"
        while came[node] is not None:
            steps.append((came[node], node))
            node = came[node]
        amount = min(room[a][b] for a, b in steps)
        for a, b in steps:
            room[a][b] -= amount
            room[b][a] += amount
        total += amount
