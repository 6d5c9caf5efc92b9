"""Elastic restarts: torchrun starts the ranks again after one was killed, and they go on from the last checkpoint."""

import os
import re
import subprocess
import sys

import torch

from examples.reporting import log_path
from tests.torch.test_train_example import RELIABLE, ROOT

# The training script, whose rank 1 is killed after the first epoch of the first attempt.
SCRIPT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from examples import train

save = train.save

def save_and_die(folder, epoch, rank, *more):
    save(folder, epoch, rank, *more)
    if rank == 1 and epoch == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)

if {die}:
    train.save = save_and_die
code = train.main()
sys.stdout.flush()
os._exit(code)
"""


def start(tmp_path, name, arguments, *, die):
    """Starts torchrun; returns it, and where its checkpoints and logs go."""
    folder = tmp_path / name
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT), die=die))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    own = ["--checkpoint", str(folder / "checkpoints"), "--resume", "--json-log", str(folder / "log.jsonl"), "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*torchrun, str(script), *arguments, *own], stdout=output, stderr=output, env=environment, cwd=folder
        )
    return process, folder


def first_epochs(folder):
    """With which epoch each start of rank 0 began; its log may break off anywhere when it is stopped."""
    text = log_path(folder / "log.jsonl", 0).read_text()
    return [int(number) for number in re.findall(r'"event": ?"start".*?"first_epoch": ?(\d+)', text)]


def test_killed_ranks_are_started_again_and_nothing_is_to_be_seen_of_it(tmp_path):
    """DDP alone over the backend, and with the hook beside it; a third run without a failure ends with the same bits."""
    common = ["--width", "8", "--batch-size", "64", "--epochs", "3", "--backend", "dlcp"]
    (tmp_path / "policy.toml").write_text(RELIABLE)
    hook = [*common, "--comm", "dlcp", "--policy", str(tmp_path / "policy.toml")]
    runs = []
    try:
        for name, arguments, die in (("backend", common, True), ("hook", hook, True), ("whole", common, False)):
            runs.append(start(tmp_path, name, arguments, die=die))
        for process, folder in runs:
            assert process.wait(timeout=100) == 0, (folder / "output").read_text()[-3000:]
    finally:
        for process, _ in runs:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=30)
    for _, folder in runs:
        # Rank 0 may have been stopped before its own second checkpoint was whole.
        assert first_epochs(folder) in ([[0]] if folder.name == "whole" else ([0, 1], [0, 2])), folder.name
    models = [
        torch.load(folder / "checkpoints" / f"epoch00003.rank{rank}.pt", weights_only=True)["model"]
        for _, folder in runs
        for rank in range(2)
    ]
    for model in models[1:]:
        assert all(torch.equal(model[key], models[0][key]) for key in models[0])
