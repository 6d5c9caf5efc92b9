"""Made-up experiments with all that one can leave: many candidates, several switches, drops of all kinds, failures."""

import json
import math
import random
from pathlib import Path

from dlcp.policy import Policy
from dlcp.topology import Topology
from testbed.results import FORMAT, VERSION, Results, write_results
from testbed.summary import summarize

SEEDS = (1, 2, 3, 4, 5)
STEPS = 48
EVERY = 6
INTERVAL = 0.1

# name, comm, baseline, congestion, target, seconds a step, loss bound, protected share
CANDIDATES = (
    ("gloo-cubic", "gloo", True, "cubic", "softswitch", 0.42, 0.0, 0.25),
    ("gloo-bbr", "gloo", True, "bbr", "softswitch", 0.33, 0.0, 0.25),
    ("gloo-fp16", "gloo-fp16", True, "cubic", "softswitch", 0.29, 0.0, 0.25),
    ("powersgd", "powersgd", True, "cubic", "softswitch", 0.31, 0.0, 0.25),
    ("dlcp-reliable", "dlcp", False, "cubic", "softswitch", 0.27, 0.0, 0.25),
    ("dlcp-loss", "dlcp", False, "cubic", "softswitch", 0.2, 0.05, 1.0),
    ("dlcp-magnitude", "dlcp", False, "cubic", "softswitch", 0.16, 0.05, 0.25),
    ("dlcp-all", "pipelined", False, "cubic", "softswitch", 0.12, 0.05, 0.25),
    ("dlcp-kernel", "dlcp", False, "cubic", "kernel", 0.21, 0.05, 0.25),
    ("dlcp-bridge", "dlcp", False, "cubic", "bridge", 0.28, 0.05, 0.25),
)


def topology() -> Topology:
    """Two leaves with three hosts each (one without a rank), two spines."""
    hosts = [{"name": f"h{n}", "ranks": [n - n // 3]} if n % 3 < 2 else {"name": f"h{n}"} for n in range(6)]
    links = [{"a": f"h{n}", "b": f"leaf{n // 3}", "rate": "100 Mbit/s", "delay": "50 us"} for n in range(6)]
    links += [{"a": f"leaf{n}", "b": f"spine{m}", "rate": "40 Mbit/s", "delay": "50 us"} for n in range(2) for m in range(2)]
    switches = [{"name": name} for name in ("leaf0", "leaf1", "spine0", "spine1")]
    return Topology.from_dict({"hosts": hosts, "switches": switches, "links": links}, "sample")


def make(folder: Path, *, candidates=CANDIDATES, seeds=SEEDS, prefix: str = "") -> Results:
    """Writes an experiment into a folder and returns its document; ``prefix`` begins all names."""
    network = topology()
    results: Results = {
        "format": FORMAT,
        "version": VERSION,
        "experiment": {
            "name": f"{prefix}oversubscribed",
            "summary": f"{prefix}Leaf and spine, 2.5 to 1, with background flows.",
            "target": "softswitch",
            "training": {"eval_every": EVERY, "accuracy": 0.9},
        },
        "topology": network.to_dict(),
        "hosts": {host.name: list(host.ranks) for host in network.hosts},
        "goal": 0.9,
        "machine": {"cpus": 2, "kernel": "6.1", "note": f"{prefix}machine"},
        "command": ["dlcp", "testbed", "run", f"{prefix}oversubscribed.toml"],
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 1234.5,
        "launcher": "fork",
        "complete": True,
        "interrupted": "",
        "planned": len(candidates) * len(seeds),
        "best_baseline": None,
        "candidates": [],
        "runs": [],
        "missing": [{"key": "netem", "what": f"{prefix}netem", "lost": "delay and loss by the switch instead"}],
    }
    for name, comm, baseline, congestion, target, _, bound, share in candidates:
        policy = Policy.from_dict({"loss": {"push": bound}, "protection": {"share": share}}).to_dict()
        results["candidates"].append(
            {
                "name": f"{prefix}{name}", "comm": comm, "baseline": baseline, "congestion": congestion, "target": target,
                "algorithm": "sharded", "policy": policy, "summary": None,  # type: ignore[typeddict-item]  # filled in below
            }
        )  # fmt: skip
    for repeat, seed in enumerate(seeds):
        for place, candidate in enumerate(candidates):
            results["runs"].append(_run(folder, network, candidate, repeat, seed, place, prefix))
    summarize(results)
    write_results(results, folder)
    return results


def _run(folder, network, candidate, repeat, seed, place, prefix):
    name, comm, _, _, target, pace, bound, _ = candidate
    dice = random.Random(f"{name}/{seed}")
    over = comm in ("dlcp", "pipelined")
    zero = 1000.0 + 40 * seed + 7 * place
    home = f"{place}-{seed}"
    (folder / home).mkdir(parents=True, exist_ok=True)
    ranks, steps, clock = [], [], 0.0
    for _ in range(STEPS):
        took = pace * dice.lognormvariate(0, 0.12) * (1 if dice.random() > 0.04 or over else 4)
        clock += took
        steps.append((took, clock))
    accuracy = [(end, 0.97 - 0.87 * math.exp(-(index + 1) / 11) + dice.gauss(0, 0.008)) for index, (_, end) in enumerate(steps)]
    evaluations = [
        {"clock_s": end, "step": index + 1, "accuracy": min(1.0, found), "test_loss": 2.3 * (1 - found) + 0.05}
        for index, (end, found) in enumerate(accuracy)
        if (index + 1) % EVERY == 0
    ]
    losses = [[end, 2.3 * math.exp(-index / 16) + 0.05 + abs(dice.gauss(0, 0.05))] for index, (_, end) in enumerate(steps)]
    times, by_class = [], {}
    for rank, host in enumerate(network.places):
        lines = [{"event": "start", "t": zero - 1.0}, {"event": "training", "t": zero}]
        for index, (took, end) in enumerate(steps):
            begin = zero + end - took
            lines.append({"event": "step", "t": zero + end + 1e-4, "step": index, "epoch": 0, "loss": losses[index][1],
                          "step_s": took, "clock_s": end})  # fmt: skip
            if index and index % EVERY:
                times.append(took)
            for bucket in range(2):
                number = 2 * index + bucket + 1
                times_of = {"begin_s": begin + 0.2 * took * (bucket + 1), "end_s": begin + took * (0.7 + 0.25 * bucket)}
                lines.append({"event": "bucket", "number": number, "bytes": 400_000, "class": 6 - 3 * bucket, **times_of})
                for peer in range(len(network.places)) if over else ():
                    if peer != rank:
                        start = begin + 0.2 * took * (bucket + 1) + 1e-3
                        lasted = took * (0.15 + 0.1 * bucket) * dice.lognormvariate(0, 0.4)
                        of_class = 6 - 3 * bucket - dice.randrange(3)
                        lost = dice.randrange(4) if bound else 0
                        by_class.setdefault(of_class, []).append((lasted, lost))
                        lines.append({"event": "message", "operation": number, "phase": "push", "part": 0, "peer": peer,
                                      "bytes": 100_000, "packets": 70, "class": of_class, "lost": lost,
                                      "begin_s": start, "end_s": start + lasted})  # fmt: skip
        lines.append({"event": "end", "t": zero + clock + 0.01, "epochs": 1})
        path = folder / home / f"rank.{rank}.jsonl"
        path.write_text("".join(json.dumps({"rank": rank, **line}) + "\n" for line in lines))
        ranks.append({"rank": rank, "host": host, "exit_code": 0, "steps": STEPS, "log": f"{home}/rank.{rank}.jsonl",
                      "output": f"{home}/ranks/{rank}.log", "said": ""})  # fmt: skip
    traces = _traces(folder, home, network, dice, clock, prefix) if target == "softswitch" else []
    buckets = [took * part for took, _ in steps for part in (0.5, 0.55)]
    return {
        "candidate": f"{prefix}{name}", "repeat": repeat, "seed": seed, "folder": home, "outcome": "ok", "error": "",
        "started_s": 40.0 * repeat + 7 * place, "zero_s": zero, "bring_up_s": 1.4, "meeting_s": 2.1, "training_s": clock + 0.01,
        "tear_down_s": 0.2, "steps": STEPS, "step_s": _distribution(times), "losses": losses, "evaluations": evaluations,
        "time_to_accuracy_s": next((e["clock_s"] for e in evaluations if e["accuracy"] >= 0.9), None),
        "final_accuracy": evaluations[-1]["accuracy"], "final_loss": evaluations[-1]["test_loss"],
        "buckets": _completion(buckets, 0),
        "classes": {str(n): _completion([t for t, _ in found], sum(lost for _, lost in found)) for n, found in by_class.items()},
        "packets": {str(n): {"protected": 17 * len(found), "droppable": 53 * len(found), "lost_protected": 0,
                             "lost_droppable": sum(lost for _, lost in found)} for n, found in by_class.items()},
        "residual": [{"clock_s": e["clock_s"], "step": e["step"], "l1": 40 * bound * dice.lognormvariate(0, 0.3),
                      "elements": 9000} for e in evaluations] if over and bound else [],
        "transport": {"data_sent": 1000} if over else {},
        "ranks": ranks, "network": _network(network, dice, target, over, bound, clock), "traces": traces,
        "events": [{"at_s": 3.0, "kind": "link-loss", "what": f"{prefix}leaf0 - spine1 loses 0.01", "error": ""}],
        "traffic": [{"id": f"{prefix}noise.{n}", "name": f"{prefix}noise", "kind": "on-off", "source": "h2", "sink": "h5",
                     "rate_bps": 20_000_000, "start_ns": 0, "sent": {"bytes": 9_000_000, "packets": 6000},
                     "received": {"bytes": 8_400_000, "packets": 5600, "lost": 400, "delay_ns": 5600 * 4_000_000,
                                  "longest_delay_ns": 31_000_000}, "errors": []} for n in range(2)],
    }  # fmt: skip


def _distribution(times):
    ordered = sorted(times)

    def at(share):
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"count": len(times), "mean_s": sum(times) / len(times), "p50_s": at(0.5), "p95_s": at(0.95), "p99_s": at(0.99),
            "min_s": ordered[0], "max_s": ordered[-1]}  # fmt: skip


def _completion(times, lost):
    ordered = sorted(times)
    line = [ordered[min(len(ordered) - 1, index * len(ordered) // 100)] for index in range(101)]
    return {"count": len(times), "bytes": 100_000 * len(times), "lost_packets": lost, "quantiles_s": line}


def _traces(folder, home, network, dice, clock, prefix):
    traces = []
    for switch in (switch.name for switch in network.switches):
        ports = {str(arc.port): arc.target for arc in network.graph.leaving(switch)}
        lines, depth = [], dict.fromkeys(ports, 0.0)
        for sample in range(int((clock + 3) / INTERVAL)):
            now = INTERVAL * sample
            state = {}
            for number, peer in ports.items():
                busy = peer.startswith("spine") and 3 < now and math.sin(now * 2.2 + int(number)) > -0.2
                depth[number] = min(64.0, max(0.0, depth[number] + dice.gauss(9 if busy else -14, 6)))
                waiting = int(depth[number])
                state[number] = {"depth": [waiting - waiting // 3, 0, 0, waiting // 3, 0, 0, 0, 0],
                                 "bytes": [1500 * waiting, 0, 0, 0, 0, 0, 0, 0], "out_packets": 30, "out_bytes": 45000,
                                 "utilisation": round(min(1.0, max(0.0, dice.gauss(0.85 if busy else 0.2, 0.1))), 3),
                                 "drops": {"queue-full": 4} if waiting == 64 else {}}  # fmt: skip
            lines.append(json.dumps({"t_us": int(now * 1e6), "ports": state}))
        name = f"{home}/{switch}.trace.jsonl"
        (folder / name).write_text("\n".join(lines) + "\n")
        traces.append({"switch": switch, "file": name, "start_s": -2.5, "ports": {n: f"{prefix}{p}" for n, p in ports.items()}})
    return traces


def _network(network, dice, target, over, bound, clock):
    switches = {}
    for switch in (switch.name for switch in network.switches):
        ports, total = {}, 0
        for arc in network.graph.leaving(switch):
            full = dice.randrange(400) if arc.target.startswith("spine") else 0
            total += full
            queues = [
                {"priority": n, "packets": 0, "bytes": 0, "dropped": full if n == (3 if over else 0) else 0} for n in range(8)
            ]
            rate = 40_000_000 if "spine" in arc.source + arc.target else 100_000_000
            sent = int(clock * rate / 8 * dice.uniform(0.1, 0.9))
            drops = {"queue-full": full} if full else {}
            ports[str(arc.port)] = {"rate_bps": rate, "out_packets": 5000, "out_bytes": sent, "drops": drops, "queues": queues}
        switches[switch] = {"ports": ports}
        if target == "softswitch":
            switches[switch] |= {"fault": None, "outside_drops": {number: {} for number in ports}}
            switches[switch] |= {"elapsed_ns": int(clock * 1e9), "drops": {"queue-full": total, "link-loss": 7, "ingress": 300}}
            given_up = [dice.randrange(150) if over and bound and n < 7 else 0 for n in range(8)]
            zeros = {"packets": [0] * 8, "bytes": [0] * 8}
            droppable = {"packets": given_up, "bytes": [1400 * n for n in given_up]}
            switches[switch]["program"] = {
                "forwarded": {kind: zeros for kind in ("droppable", "protected", "ordinary")},
                "dropped": {"droppable": droppable, "protected": zeros, "ordinary": zeros},
                "trimmed": {"droppable": droppable, "protected": zeros, "ordinary": zeros},
                "marked": {kind: zeros for kind in ("droppable", "protected", "ordinary")},
                "discarded": {"malformed": 0, "unknown": 2, "refused": 0, "policed": 0, "expired": 0, "hairpin": 0},
            }
    hosts = {
        host.name: {"eth0": {"packets": 100, "bytes": 150_000, "drops": 3, "backlog": 0, "qlen": 0}} for host in network.hosts
    }
    found = {"target": target, "switches": switches, "hosts": hosts, "backlog_drops": 0}
    if target != "softswitch":
        found["wires"] = {"drops": {"link-loss": 5}, "outside_drops": {"0": {}}}
    return found
