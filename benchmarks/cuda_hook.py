"""What a training step with gradients on a GPU costs: DDP over nccl and gloo, and with DLCP's hook.

Every rank trains the same model of linear layers on one GPU (several ranks share one if there are fewer).  Each candidate is a
model of its own in the same processes, and they take turns, so that other load hits all alike.  "alone" is the step without any
communication, "exchange" the reduction of all gradients with nothing to compute meanwhile.  The overlap says how much of the
shorter of these two the longer one hides: 1 is all of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for "python benchmarks/cuda_hook.py" without an installation

EXIT_NOTHING = 2


def main(arguments: list[str] | None = None) -> int:
    """Runs all ranks and prints what they found."""
    options = _parse(arguments)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured (--device cpu runs the same code on the host)", file=sys.stderr)
        if options.json:
            print(json.dumps({"device": None, "skipped": "no CUDA device"}))
        return EXIT_NOTHING
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue: Any = context.SimpleQueue()
        processes = [context.Process(target=_rank, args=(rank, options, folder, queue)) for rank in range(options.ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            print("a rank failed; see above", file=sys.stderr)
            return 1
        report = queue.get()
    print(json.dumps(report) if options.json else _table(report))
    return 0


def _rank(rank: int, options: argparse.Namespace, folder: str, queue: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", options.ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    bench = _Bench(options, rank, device)
    try:
        report = bench.run()
        if rank == 0:
            queue.put(report)
    finally:
        bench.close()
    dist.destroy_process_group()


class _Bench:
    def __init__(self, options: argparse.Namespace, rank: int, device: Any) -> None:
        import torch
        import torch.distributed as dist

        self.options, self.rank, self.device = options, rank, device
        self.closing: list[Callable[[], None]] = []
        self.why_not = ""
        torch.manual_seed(rank)
        self.inputs = torch.randn(options.batch, options.width, device=device)
        self.candidates: dict[str, tuple[Any, Callable[[], AbstractContextManager[Any]]]] = {}
        self.states: dict[str, Any] = {}
        model = self._model("gloo", None)
        self.candidates["alone"] = (model, model.no_sync)
        self._add("gloo", model)
        if options.device == "cuda":
            if torch.cuda.device_count() >= options.ranks:
                self._add("nccl", self._model("nccl", dist.new_group(backend="nccl")))
            else:
                self.why_not = f"nccl needs a GPU for each rank: {torch.cuda.device_count()} for {options.ranks}"
        self._add("dlcp", self._model("dlcp", None))

    def _model(self, name: str, group: Any) -> Any:
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        from dlcp import Policy
        from dlcp.torch import DLCPState

        torch.manual_seed(0)
        layers = [nn.Linear(self.options.width, self.options.width) for _ in range(self.options.layers)]
        net = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
        net = net.to(self.device, getattr(torch, self.options.dtype))
        ids = [self.device] if self.device.type == "cuda" else None
        model = DistributedDataParallel(net, ids, process_group=group, bucket_cap_mb=self.options.bucket_mb)
        if name == "dlcp":
            policy = Policy.from_toml(self.options.policy) if self.options.policy else Policy()
            state = DLCPState.from_process_group(policy=policy)
            state.attach(model)
            self.closing.append(state.close)
            self.states[name] = state
        return model

    def _add(self, name: str, model: Any) -> None:
        from contextlib import nullcontext

        self.candidates[name] = (model, nullcontext)

    def run(self) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        times: dict[str, list[float]] = {name: [] for name in self.candidates}
        cpu: dict[str, list[float]] = {name: [] for name in self.candidates}
        for turn in range(self.options.warmup + self.options.iters):
            for name, (model, context) in self.candidates.items():
                begin, used = self._begin()
                self._step(model, context)
                seconds = self._end(begin)
                if turn >= self.options.warmup:
                    times[name].append(seconds)
                    cpu[name].append(time.process_time() - used)
        exchange = {name: self._exchange(model) for name, (model, _) in self.candidates.items() if name != "alone"}
        elements = sum(p.numel() * p.element_size() for p in self.candidates["dlcp"][0].parameters())
        alone = statistics.median(times["alone"])
        found = {}
        for name, values in times.items():
            step = statistics.median(values)
            found[name] = {"step_s": step, "min_s": min(values), "cpu_s": min(cpu[name])}
            if name in exchange:
                hidden = alone + exchange[name] - step
                overlap = max(0.0, min(1.0, hidden / max(min(alone, exchange[name]), 1e-9)))
                found[name] |= {"exchange_s": exchange[name], "overlap": overlap}
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else f"host, {platform.machine()}"
        return {
            "device": where,
            "ranks": dist.get_world_size(),
            "gradient_bytes": elements,
            "dtype": self.options.dtype,
            "iters": self.options.iters,
            "torch": torch.__version__,
            "load": os.getloadavg()[0],
            "left_out": self.why_not,
            "candidates": found,
        }

    def _begin(self) -> tuple[float, float]:
        import torch.distributed as dist

        self._settle()
        dist.barrier()
        return time.perf_counter(), time.process_time()

    def _end(self, begin: float) -> float:
        """Returns what the slowest rank took."""
        import torch
        import torch.distributed as dist

        self._settle()
        seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return float(seconds)

    def _settle(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # between steps only: it is what is being measured that must not do so

    def _step(self, model: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
        import torch

        inputs = self.inputs.to(getattr(torch, self.options.dtype))
        for parameter in model.parameters():
            parameter.grad = None
        with context():
            model(inputs).float().square().mean().backward()

    def _exchange(self, model: Any) -> float:
        """Returns the seconds in which all gradients are reduced, where hardly anything is computed: a batch of one."""
        inputs, self.inputs = self.inputs, self.inputs[:1]
        values = []
        try:
            for turn in range(2 + max(3, self.options.iters // 2)):
                begin, _ = self._begin()
                self._step(model, self.candidates["gloo"][1])
                seconds = self._end(begin)
                if turn >= 2:
                    values.append(seconds)
        finally:
            self.inputs = inputs
        return statistics.median(values)

    def close(self) -> None:
        for close in self.closing:
            close()


def _table(report: dict[str, Any]) -> str:
    size = f"{report['gradient_bytes'] / 1e6:.1f} MB of gradients ({report['dtype']})"
    lines = [
        f"{report['ranks']} ranks on {report['device']}, {size}, "
        f"{report['iters']} turns, load {report['load']:.1f}; medians of the slowest rank, ms",
        f"{'':8}{'step':>10}{'least':>10}{'CPU':>10}{'exchange':>10}{'overlap':>10}",
    ]
    for name, found in report["candidates"].items():
        row = [f"{1e3 * found[key]:>10.2f}" for key in ("step_s", "min_s", "cpu_s")]
        more = [f"{1e3 * found['exchange_s']:>10.2f}", f"{found['overlap']:>10.2f}"] if "exchange_s" in found else []
        lines.append(f"{name:8}" + "".join([*row, *more]))
    if report["left_out"]:
        lines.append(report["left_out"])
    return "\n".join(lines)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="cuda_hook.py",
        description="Step time and overlap with gradients on a GPU: DDP over gloo and nccl, and with DLCP's hook.",
        epilog="example: python benchmarks/cuda_hook.py --ranks 2 --layers 12 --width 2048 --json",
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu runs the same code on the host (default: %(default)s)")
    add("--ranks", type=int, default=2, metavar="N", help="processes (default: %(default)s)")
    add("--layers", type=int, default=8, metavar="N", help="linear layers (default: %(default)s)")
    add("--width", type=int, default=1024, metavar="N", help="of each (default: %(default)s)")
    add("--batch", type=int, default=512, metavar="N", help="rows of the input; more is more to compute (default: %(default)s)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of model and gradients")
    add("--bucket-mb", type=float, default=4.0, metavar="X", help="DDP's bucket size (default: %(default)s)")
    add("--iters", type=int, default=20, metavar="N", help="turns that count (default: %(default)s)")
    add("--warmup", type=int, default=5, metavar="N", help="turns before (default: %(default)s)")
    add("--policy", type=Path, metavar="FILE", help="TOML file; the defaults otherwise")
    add("--json", action="store_true", help="a JSON document instead of the table")
    options = parser.parse_args(arguments)
    if min(options.ranks, options.layers, options.width, options.batch, options.iters) < 1 or options.warmup < 3:
        parser.error("numbers above 0 are needed, and at least 3 turns of warm-up, in which DDP builds its buckets")
    return options


if __name__ == "__main__":
    sys.exit(main())
