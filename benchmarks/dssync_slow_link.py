"""Training on a network with one slow link: DS-Sync against DDP, PostLocalSGD and hierarchical averaging.

python benchmarks/dssync_slow_link.py --json out/dssync-slow-link.json          (as root: it makes network namespaces)

Every rank is a process in a namespace of its own, joined to a bridge by a link whose rate is shaped in both directions (tbf). All
candidates train the same model on the same batches, for the same number of epochs; the time is that of the training loop, and the
accuracy that of the mean of the models.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CANDIDATES = ("ddp", "post-local-sgd", "hierarchical", "ds-sync base-k", "ds-sync adaptive", "ds-sync topology")
_CLONE_NEWNET = 0x40000000


class Network:
    """Namespaces around a bridge; all are gone when the block ends.

    Args:
        rates: Mbit/s of each rank's link.
        delay_ms: Added in each direction, by netem in the bridge's namespace; 0 adds none.
    """

    def __init__(self, rates: list[float], delay_ms: float) -> None:
        self.rates, self.delay_ms = rates, delay_ms
        self.tag = f"ds{os.getpid() % 10000}{secrets.token_hex(2)}"
        self.hosts = [f"{self.tag}h{rank}" for rank in range(len(rates))]
        self.hub = f"{self.tag}hub"

    def __enter__(self) -> Network:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.hub, "link", "set", "br0", "up")
        for rank, (host, rate) in enumerate(zip(self.hosts, self.rates, strict=True)):
            _ip("netns", "add", host)
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", f"p{rank}", "netns", self.hub)
            _ip("-n", host, "addr", "add", f"10.9.0.{rank + 1}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")
            _ip("-n", self.hub, "link", "set", f"p{rank}", "master", "br0", "up")
            burst = max(8_000, int(rate * 1e6 / 8 * 0.004))
            shape = ("tbf", "rate", f"{rate}mbit", "burst", str(burst), "latency", "60ms")
            for space, device in ((host, "eth0"), (self.hub, f"p{rank}")):
                # Segments of 64 KB would not fit through the bucket of a slow link.
                if burst < 100_000:
                    _run("ip", "netns", "exec", space, "ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off")
                _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "handle", "1:", *shape)
                if self.delay_ms:
                    delay = ("netem", "delay", f"{self.delay_ms}ms", "limit", "2000")
                    _run("tc", "-n", space, "qdisc", "add", "dev", device, "parent", "1:1", *delay)

    def __exit__(self, *exception: object) -> None:
        for name in (*self.hosts, self.hub):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")


def enter(namespace: str) -> None:
    """Moves this process into a namespace, and tells gloo which interface to use."""
    with Path(f"/run/netns/{namespace}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    # Resolvers that cannot be reached from here would cost gloo seconds for each connection.
    if ctypes.CDLL(None).unshare(0x00020000) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
        subprocess.run(["mount", "--bind", "/dev/null", "/etc/resolv.conf"], check=False, capture_output=True)


def rank_main(rank: int, world: int, namespace: str, folder: str, candidate: str, options: argparse.Namespace, pipe: Any) -> None:
    """Runs one rank in its namespace and sends what came of it."""
    enter(namespace)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=300))
    pipe.send(train(rank, world, candidate, options))
    pipe.close()
    os._exit(0)


def train(rank: int, world: int, candidate: str, options: argparse.Namespace) -> dict[str, Any]:
    """Trains, and returns seconds, accuracy and loss."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.optim import SGD

    from examples.data import load_digits
    from examples.models import DigitsNet

    torch.manual_seed(options.seed)
    data = load_digits()
    model = DigitsNet(options.width)
    optimizer: Any = SGD(model.parameters(), lr=options.lr, momentum=0.9)
    forward, optimizer, averager = synchronize(rank, world, candidate, model, optimizer, options)
    batch = options.batch
    generator = torch.Generator().manual_seed(options.seed)
    dist.barrier()
    begin = time.perf_counter()
    steps = 0
    for _ in range(options.epochs):
        order = torch.randperm(len(data.train_inputs), generator=generator)
        for start in range(0, len(order) - world * batch + 1, world * batch):
            mine = order[start + rank * batch : start + (rank + 1) * batch]
            optimizer.zero_grad()
            functional.cross_entropy(forward(data.train_inputs[mine]), data.train_targets[mine]).backward()
            optimizer.step()
            steps += 1
    if averager is not None:
        averager.consensus()
    elif candidate != "ddp":
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)
    dist.barrier()
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        logits = model(data.test_inputs)
    test_loss = float(functional.cross_entropy(logits, data.test_targets))
    accuracy = float((logits.argmax(-1) == data.test_targets).float().mean())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    schedule = repr(averager.schedule) if averager is not None else ""
    return {
        "candidate": candidate,
        **{"seconds": seconds, "steps": steps, "accuracy": accuracy, "test_loss": test_loss, "bytes": size},
        "schedule": schedule,
    }


def synchronize(
    rank: int, world: int, candidate: str, model: Any, optimizer: Any, options: argparse.Namespace
) -> tuple[Any, ...]:
    """Returns what is called forward, the optimizer, and an averager if there is one."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from dssync import Contention, DivideShuffleAverager, DivideShuffleOptimizer, make_schedule

    if candidate == "ddp":
        return DistributedDataParallel(model), optimizer, None
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    if candidate in ("post-local-sgd", "hierarchical"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from collections import OrderedDict

            from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
            from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
            from torch.distributed.optim import PostLocalSGDOptimizer

            inner: Any = (
                PeriodicModelAverager(options.period)
                if candidate == "post-local-sgd"
                else HierarchicalModelAverager(OrderedDict([(max(1, options.period // 2), world // 2), (options.period, world)]))
            )
            return model, PostLocalSGDOptimizer(optimizer, inner), None
    kind = candidate.removeprefix("ds-sync ")
    more: dict[str, Any] = {}
    if kind == "topology":
        schedule = make_schedule(
            "topology", world, domains=[range(world - 1), [world - 1]], local=options.local, crossing=1, group=options.group
        )
    else:
        schedule = make_schedule("base-k", world, group=2)
    if kind == "adaptive":
        more["contention"] = Contention(rounds=6)
    averager = DivideShuffleAverager(model, schedule, every=options.every, overlap=options.overlap, **more)
    return model, DivideShuffleOptimizer(optimizer, averager), averager


@contextmanager
def zygote() -> Iterator[Any]:
    """Yields a context whose processes are forked from one that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "torch",
            "torch.distributed",
            "torch._dynamo",
            "torch.nn.parallel",
            "sklearn.datasets",
            "examples.train",
            "dssync.averager",
        ]
    )
    yield context


def measure(candidate: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one candidate on a fresh network and returns what rank 0 says."""
    rates = [options.rate] * (options.ranks - 1) + [options.slow]
    with zygote() as context, Network(rates, options.delay) as network, tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank, namespace in enumerate(network.hosts):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=rank_main, args=(rank, options.ranks, namespace, folder, candidate, options, theirs), daemon=True
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            results = [pipe.recv() for pipe in pipes]
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
    first: dict[str, Any] = results[0]
    return first


def main() -> None:
    """Runs the candidates, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of all links but the last")
    parser.add_argument("--slow", type=float, default=10.0, help="Mbit/s of the last link")
    parser.add_argument("--delay", type=float, default=0.0, help="ms each way on each link")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="samples for each rank and step")
    parser.add_argument("--width", type=int, default=16, help="of the model; bytes grow with its square")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--period", type=int, default=4, help="of post-local-sgd and hierarchical averaging")
    parser.add_argument("--local", type=int, default=3, help="ds-sync topology: local rounds before each crossing")
    parser.add_argument("--group", type=int, help="ds-sync topology: largest group")
    parser.add_argument("--every", type=int, default=1, help="ds-sync: steps for each round")
    parser.add_argument("--overlap", action="store_true", help="ds-sync: apply averages one round later")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if os.geteuid():
        raise SystemExit("network namespaces need root")
    results = []
    print(
        "| candidate | seed | seconds | steps | speed against ddp | accuracy | test loss |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for seed in range(options.seeds):
        options.seed = seed
        base: float | None = None
        for candidate in options.candidates:
            found = measure(candidate, options) | {"seed": seed}
            results.append(found)
            base = found["seconds"] if candidate == "ddp" else base
            speed = f"{base / found['seconds']:.2f}x" if base else "-"
            print(
                f"| {candidate} | {seed} | {found['seconds']:.1f} | {found['steps']} | {speed} | {found['accuracy']:.2%} "
                f"| {found['test_loss']:.4f} |",
                flush=True,
            )
            if options.json is not None:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
