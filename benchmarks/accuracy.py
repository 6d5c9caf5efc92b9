"""Does loss cost accuracy?  Trains the examples over gloo and over DLCP with injected loss, for several seeds, and compares.

    python benchmarks/accuracy.py                                   everything; 30 minutes on 2 cores
    python benchmarks/accuracy.py --task digits --seeds 2 --loss 0.01
    python benchmarks/accuracy.py --json out.json --markdown out.md

A seed sets weights, order of samples and faults.  Runs of one seed follow each other, so that all candidates see the same
machine.  Packets are of Ethernet size (MTU 1500) whatever the loopback interface takes, for a loss bound means little for a
message of three packets.  Everything else is the default policy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EPOCHS = {"digits": 12, "charlm": 2}
POLICY = "[wire]\nmtu = 1500\n"
TIME_LIMIT_S = 900


def candidates(losses: list[float]) -> dict[str, list[str]]:
    """Returns what to compare: title to options of examples.train."""
    runs = {"gloo": ["--comm", "gloo"]}
    for loss in losses:
        options = ["--comm", "dlcp"]
        runs[f"dlcp, {loss:.0%} loss"] = [*options, "--faults", f"drop={loss}"] if loss else options
    return runs


def train(task: str, seed: int, options: list[str], ranks: int, epochs: int, folder: Path) -> dict[str, Any]:
    """Runs one training and returns what its logs say."""
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    log = folder / "run.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "examples.train", "--task", task, "--epochs", str(epochs), "--seed", str(seed), "--quiet"]
    command += ["--json-log", str(log), *options]
    if "dlcp" in options:
        command += ["--policy", str(policy)]
    if "--faults" in options:
        command[command.index("--faults") + 1] += f";seed={seed}"
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"training failed with exit code {done.returncode}: {' '.join(command)}\n{done.stderr[-3000:]}")
    lines = [json.loads(line) for line in (folder / "run.0.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["event"] == "epoch"][-1]
    return {
        "accuracy": last["accuracy"],
        "test_loss": last["test_loss"],
        "seconds": time.perf_counter() - begin,
        "metrics": last.get("metrics", {}),
    }


def summarize(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns mean, standard deviation and range of the final accuracy of each candidate."""
    rows = []
    for title, runs in results.items():
        values = [run["accuracy"] for run in runs]
        rows.append(
            {
                "candidate": title,
                "seeds": len(values),
                "mean": statistics.fmean(values),
                "std": statistics.stdev(values) if len(values) > 1 else 0.0,
                "min": min(values),
                "max": max(values),
                "test_loss": statistics.fmean(run["test_loss"] for run in runs),
            }
        )
    return rows


def markdown(task: str, rows: list[dict[str, Any]]) -> str:
    """Returns a table."""
    lines = [f"| {task} | accuracy, mean ± standard deviation | lowest to highest | test loss |", "|---|---|---|---|"]
    for row in rows:
        spread = f"{row['min']:.2%} to {row['max']:.2%}"
        lines.append(f"| {row['candidate']} | {row['mean']:.2%} ± {row['std']:.2%} | {spread} | {row['test_loss']:.4f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(EPOCHS), action="append", help="may be repeated (default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--loss", type=float, action="append", help="may be repeated (default: 0, 0.01 and 0.05)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()
    everything: dict[str, Any] = {}
    tables = []
    for task in options.task or sorted(EPOCHS, reverse=True):
        runs = candidates(options.loss or [0.0, 0.01, 0.05])
        results: dict[str, list[dict[str, Any]]] = {title: [] for title in runs}
        for seed in range(options.seeds):
            for title, choice in runs.items():
                with tempfile.TemporaryDirectory() as folder:
                    result = train(task, seed, choice, options.ranks, EPOCHS[task], Path(folder))
                results[title].append(result)
                print(f"{task}, seed {seed}, {title}: {result['accuracy']:.2%} after {result['seconds']:.0f} s", file=sys.stderr)
        rows = summarize(results)
        everything[task] = {"rows": rows, "runs": results}
        tables.append(markdown(task, rows))
        print(tables[-1] + "\n", flush=True)
        if options.json:
            options.json.write_text(json.dumps(everything, indent=1))
    if options.markdown:
        options.markdown.write_text("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
