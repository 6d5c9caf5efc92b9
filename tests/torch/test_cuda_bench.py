"""benchmarks/cuda_hook.py: on the host, and where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments):
    command = [sys.executable, "benchmarks/cuda_hook.py", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so():
    done = bench("--json")
    assert done.returncode == 2 and "no CUDA device here: nothing was measured" in done.stderr
    assert json.loads(done.stdout) == {"device": None, "skipped": "no CUDA device"}


def test_the_same_code_measures_the_host():
    done = bench("--device", "cpu", "--layers", "2", "--width", "64", "--batch", "8", "--iters", "2", "--warmup", "3", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ranks"] == 2 and report["gradient_bytes"] == 2 * 65 * 64 * 4 and report["device"].startswith("host")
    assert set(report["candidates"]) == {"alone", "gloo", "dlcp"}
    for name, found in report["candidates"].items():
        assert 0 < found["min_s"] <= found["step_s"]
        assert name == "alone" or (found["exchange_s"] > 0 and 0 <= found["overlap"] <= 1)
