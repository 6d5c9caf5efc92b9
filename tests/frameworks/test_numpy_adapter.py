"""Averages of gradients that are numpy arrays, over real ranks."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlcp
from dlcp.errors import ConfigError, DLCPError, MismatchError, RemoteError
from dlcp.gradients.layout import GradientLayout, leaf_of
from dlcp.numpy import GradientAverager
from tests.collectives.processes import run_ranks
from tests.frameworks.adapted import DROPS, LOSSY, communicator, digest, mean_of, whole_numbers

SHAPES = {"front": (300, 40), "odd": (), "empty": (0, 3), "half": (2000,), "double": (700, 3), "back": (1, 5000)}
TYPES = {"half": np.float16, "double": np.float64}


def gradients(rank, step):
    return {name: np.asarray(whole_numbers(rank, step, shape), TYPES.get(name, np.float32)) for name, shape in SHAPES.items()}


# -- how they travel together


@given(
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["float32", "float16", "float64"])), min_size=1, max_size=12),
    st.integers(1, 3000),
    st.randoms(use_true_random=False),
)
def test_every_element_travels_once_urgent_ones_first_and_types_apart(described, bucket_bytes, random):
    leaves = [leaf_of(f"p{i}", (size,), dtype, "test") for i, (size, dtype) in enumerate(described)]
    order = [leaf.name for leaf in leaves]
    random.shuffle(order)
    if not any(leaf.size for leaf in leaves):
        with pytest.raises(ConfigError, match="nothing to average"):
            GradientLayout(leaves, order, 7, bucket_bytes, "test")
        return
    layout = GradientLayout(leaves, order, 7, bucket_bytes, "test")
    travelled = [i for bucket in layout.buckets for i in bucket.members]
    assert sorted(travelled) == [i for i, leaf in enumerate(leaves) if leaf.size]
    for dtype in ("float32", "float64"):
        of_type = [name for bucket in layout.buckets if bucket.dtype == dtype for name in bucket.names]
        assert of_type == [n for n in order if n in of_type], "not in the order of use"
    for bucket in layout.buckets:
        assert {leaves[i].work for i in bucket.members} == {bucket.dtype}
        assert bucket.elements == sum(leaves[i].size for i in bucket.members)
        # The last one filled it, if it is full.
        assert (bucket.elements - leaves[bucket.members[-1]].size) * bucket.dtype.itemsize < bucket_bytes
    urgency = [layout.classes[i] for i in layout.order]
    assert urgency == sorted(urgency, reverse=True)
    assert layout.digest() == GradientLayout(leaves, order, 7, bucket_bytes, "test").digest()
    if len(leaves) > 1:
        assert layout.digest() != GradientLayout(leaves, order[1:] + order[:1], 7, bucket_bytes, "test").digest()


def test_what_does_not_fit_is_refused_by_name():
    alone = dlcp.Communicator(0, 1, dlcp.MemoryStore())
    floats = {"a": np.zeros(3, np.float32), "b": np.zeros((2, 2), np.float32)}
    for parameters, options, words in (
        ({"a": np.zeros(3, np.int64)}, {}, "a: elements of int64; accepted: float16, bfloat16"),
        ({"a": np.zeros(3, complex)}, {}, "complex128"),
        (floats, {"order": ["a"]}, "order: does not fit the parameters: b"),
        (floats, {"order": ["a", "b", "b"]}, "order"),
        (floats, {"bucket_bytes": 0}, "bucket_bytes"),
    ):
        with pytest.raises(ConfigError, match=words):
            GradientAverager(alone, parameters, **options)
    for wrong, words in (
        ({"a": floats["a"]}, "names: a; accepted: a, b"),
        ({**floats, "a": np.zeros(4, np.float32)}, r"a: a gradient of float32\[4\]; accepted: float32\[3\]"),
        ({**floats, "b": np.zeros((2, 2))}, "b: a gradient of float64"),
        ([1, 2], "a list"),
    ):
        with dlcp.Communicator(0, 1, dlcp.MemoryStore()) as other:
            averager = GradientAverager(other, floats)
            with pytest.raises(ConfigError, match=words):
                averager.average(wrong)
            with pytest.raises(ConfigError, match=words):
                averager.check()
    alone.close()
    for loss, words in (({"pull": 0.1, "resync_steps": 5}, "loss.pull"), ({"bound": "adaptive"}, "loss.bound")):
        with dlcp.Communicator(0, 1, dlcp.MemoryStore(), policy=dlcp.Policy.from_dict({"loss": loss})) as other:
            with pytest.raises(ConfigError, match=words):
                GradientAverager(other, floats)


def test_one_step_at_a_time_and_lists_too():
    with dlcp.Communicator(0, 1, dlcp.MemoryStore()) as alone:
        averager = GradientAverager(alone, [np.zeros(3, np.float32), np.zeros((2, 2))])
        given_away = [np.ones(3, np.float32), np.full((2, 2), 5.0)]
        wait = averager.average_async(given_away)
        given_away[0][:] = 9
        with pytest.raises(RuntimeError, match="wait for it"):
            averager.average(given_away)
        first, second = wait()
        assert wait()[0] is first and first.tolist() == [1, 1, 1] and second.tolist() == [[5, 5], [5, 5]]
        first[:] = 7  # the caller's own
        assert averager.average([None, given_away[1]])[0].tolist() == [0, 0, 0]
        assert averager.names == ["0", "1"] and averager.passes == 2


# -- over ranks


def lossless(rank, folder, world):
    with communicator(rank, folder, world, loss={"push": 0.0}, wire={"mtu": 1500}) as comm:
        start = {name: array + rank for name, array in gradients(7, 0).items()}
        averager = GradientAverager(comm, start, bucket_bytes=16_000)
        shared = averager.broadcast(start)
        assert all(np.array_equal(shared[name], gradients(7, 0)[name]) for name in SHAPES), "not rank 0's"
        seen = [digest(shared.values())]
        for step in range(3):
            mine = gradients(rank, step)
            before = digest(mine.values())
            averages = averager.average(mine)
            assert digest(mine.values()) == before
            for name, shape in SHAPES.items():
                assert averages[name].dtype == mine[name].dtype and averages[name].shape == shape
                exact = mean_of(world, step, shape)
                if world == 2:  # by three the division rounds
                    assert np.array_equal(averages[name], exact.astype(mine[name].dtype)), name
                else:
                    np.testing.assert_allclose(averages[name].astype(float), exact, rtol=2e-3, atol=1e-6)
            seen.append(digest(averages.values()))
        hook = averager.metrics()["hook"]
        assert hook["lost_elements"] == 0 and hook["buckets"] == 3 * len(averager._layout.buckets) and hook["passes"] == 3
        assert 0 < hook["protected_packets"] < hook["packets"]
        return seen


@pytest.mark.parametrize("world", [2, 3])
def test_without_loss_the_average_is_the_mean_and_replicas_are_equal(world):
    first, *others = run_ranks(lossless, world, world)
    assert all(other == first for other in others)


def lossy(rank, folder, kept):
    """Float64 sums of whole numbers are exact, so that mass is conserved to the last bit, over a restart too."""
    shapes = {"a": (300, 40), "b": (9000,)}
    contributed, delivered, balance, owed = 0.0, 0.0, [], []
    for part in range(3):  # nothing is lost in the last one
        with communicator(rank, folder, faults=DROPS if part < 2 else None, name=f"part{part}", **LOSSY) as comm:
            averager = GradientAverager(comm, {name: np.zeros(shape) for name, shape in shapes.items()})
            if part:
                averager.load(f"{kept}/rank{rank}.{part - 1}.npz")
                assert averager.passes == 4 * part
            for step in range(4):
                mine = {name: whole_numbers(rank, step, shape).astype(float) for name, shape in shapes.items()}
                averages = averager.average(mine)
                contributed += sum(array.sum() for array in mine.values())
                delivered += sum(array.sum() for array in averages.values())  # half of it, by each of the two
            hook = averager.metrics()["hook"]
            averager.save(f"{kept}/rank{rank}.{part}.npz")
            owed.append(sum(averager.residuals.get(key).values.sum() for key in averager.residuals.keys()))
            balance.append(contributed - delivered)
            assert bool(hook["lost_elements"]) == bool(hook["residual_elements"]) == (part < 2)
    return balance, owed, digest(averages.values())


def test_what_is_lost_is_owed_and_survives_a_restart(tmp_path):
    (balance, owed, first), (other_balance, other_owed, second) = run_ranks(lossy, 2, str(tmp_path))
    assert first == second, "replicas differ"
    for part in range(3):
        assert balance[part] + other_balance[part] == owed[part] + other_owed[part], f"part {part}"
    assert owed[0] and other_owed[0], "nothing was owed, so that nothing was tested"
    assert owed[2] == other_owed[2] == 0, "debts have not left with the next step"
    # The wrong model, nothing at all, garbage: refused by name, and nothing changes.
    with dlcp.Communicator(0, 1, dlcp.MemoryStore()) as alone:
        other = GradientAverager(alone, {"a": np.zeros(5), "b": np.zeros(5)})
        (tmp_path / "garbage.npz").write_bytes(b"PK\x03\x04 nothing of the kind")
        np.save(tmp_path / "single.npy", np.zeros(3))
        for name in ("rank0.0.npz", "missing.npz", "garbage.npz", "single.npy"):
            with pytest.raises(ConfigError, match=name.split(".")[0]):
                other.load(tmp_path / name)
        state = other.state_dict()
        for key, value in (("version", 9), ("passes", -1), ("residuals", [])):
            with pytest.raises(ConfigError, match=key):
                other.load_state_dict({**state, key: value}, "x")
        assert other.passes == 0 and len(other.residuals) == 0


def different_models(rank, folder):
    with communicator(rank, folder) as comm:
        with pytest.raises(MismatchError, match="averages other arrays"):
            GradientAverager(comm, {"a": np.zeros(3 + rank, np.float32), "b": np.zeros(4 - rank, np.float32)})


def test_ranks_with_other_parameters_notice_before_anything_is_added():
    run_ranks(different_models, 2)


def failing(rank, folder):
    kinds = []
    with pytest.raises(DLCPError), communicator(rank, folder, faults=DROPS, **LOSSY) as comm:
        averager = GradientAverager(comm, {"a": np.zeros(9000, np.float32)})
        with averager.guard():
            for step in range(3):
                averager.average({"a": whole_numbers(rank, step, 9000).astype(np.float32)})
            comm.barrier()
            before = averager.state_dict()["residuals"]["entries"]
            try:
                averager.average({"a": np.zeros(9000 if rank == 0 else 5, np.float32)})
            except DLCPError as error:
                after = averager.state_dict()["residuals"]["entries"]
                assert after.keys() == before.keys()
                assert all(np.array_equal(after[key]["values"], before[key]["values"]) for key in before)
                kinds.append(type(error))
                raise
    return kinds[0].__name__


def test_a_failed_step_ends_all_ranks_and_puts_residuals_back():
    assert run_ranks(failing, 2) == ["RemoteError", "ConfigError"]


def guarded(rank, folder):
    with communicator(rank, folder) as comm:
        averager = GradientAverager(comm, {"a": np.zeros(9, np.float32)})
        try:
            with averager.guard():
                if rank == 1:
                    raise KeyError("a bug in the loop")
                averager.average({"a": np.ones(9, np.float32)})
        except (KeyError, RemoteError) as error:
            return type(error).__name__, str(error)


def test_an_error_in_the_loop_of_one_rank_ends_the_others():
    (kind, text), (other, _) = run_ranks(guarded, 2)
    assert (kind, other) == ("RemoteError", "KeyError") and "a bug in the loop" in text


# -- no torch, and the example


def test_adapters_need_no_torch_and_say_what_they_need():
    code = """
import sys
for name in ("torch", "jax", "tensorflow"):
    sys.modules[name] = None
import dlcp, dlcp.numpy, dlcp.jax, dlcp.tensorflow, numpy
with dlcp.Communicator(0, 1, dlcp.MemoryStore()) as alone:
    print(dlcp.numpy.GradientAverager(alone, [numpy.zeros(2)]).average([numpy.ones(2)])[0].sum())
    for module in (dlcp.jax, dlcp.tensorflow):
        try:
            module.GradientAverager(alone, [])
        except ImportError as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=_root())
    assert done.stdout.splitlines() == [
        "2.0",
        "dlcp.jax needs JAX: pip install 'dlcp[jax]'",
        "dlcp.tensorflow needs TensorFlow: pip install 'dlcp[tensorflow]'",
    ], done.stderr


def _root():
    from tests.frameworks.conftest import ROOT

    return ROOT


def launched(*arguments, python=sys.executable):
    command = [python, "-m", "examples.launch", "--ranks", "2", *arguments]
    return subprocess.run(command, cwd=_root(), capture_output=True, text=True, check=False, timeout=110)


def summaries(path):
    return [json.loads(path.with_suffix(f".{rank}.json").read_text()) for rank in range(2)]


def test_the_example_learns_over_a_lossy_network_and_goes_on_from_a_checkpoint(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("[loss]\npush = 0.2\n[wire]\nmtu = 1500\n")
    common = ["examples/train_numpy.py", "--width", "64", "--batch-size", "64", "--lr", "0.3", "--check", "--policy", str(policy)]
    lossy = [*common, "--faults", "drop=0.05,type=data;seed=1", "--json", str(tmp_path / "run.json")]
    saving = [*lossy, "--checkpoint", str(tmp_path / "kept")]
    for arguments in ([*saving, "--epochs", "1"], [*saving, "--epochs", "3", "--resume"]):
        done = launched(*arguments)
        assert done.returncode == 0, done.stderr
    assert "epoch 0" not in done.stderr and "epoch 2" in done.stderr and "numpy" in done.stdout
    first, second = summaries(tmp_path / "run.json")
    assert first["digest"] == second["digest"] and first["accuracy"] > 0.85
    assert first["hook"]["passes"] == 3 * 11 and first["compared_steps"] == 2 * 11
    assert first["hook"]["lost_elements"] + second["hook"]["lost_elements"] > 0


def test_launch_ends_with_the_code_of_who_failed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nsys.exit(3 * int(os.environ['RANK']) if os.environ['WORLD_SIZE'] == '2' else 9)\n")
    assert launched(str(script)).returncode == 3
    assert launched("no-such-script.py").returncode == 2
    (tmp_path / "bad.toml").write_text("[loss]\npush = 7\n")
    done = launched("examples/train_numpy.py", "--policy", str(tmp_path / "bad.toml"))
    assert done.returncode == 2 and "loss.push" in done.stderr
