"""Averages of pytrees in JAX, outside of compiled functions and inside; skipped where there is no JAX."""

import os
from importlib.util import find_spec

import numpy as np
import pytest

from dlcp.errors import DLCPError
from tests.collectives.processes import run_ranks
from tests.frameworks.adapted import DROPS, LOSSY, communicator, digest, mean_of, whole_numbers
from tests.frameworks.test_numpy_adapter import launched, summaries

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed: pip install 'dlcp[jax]'")

SHAPES = {"a": (300, 40), "b": (), "c": (2000,), "d": (0, 3), "e": (5, 7)}
TYPES = {"c": "bfloat16", "e": "float16"}


def load_jax():
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Two devices, so that an array can be spread over them.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax

    return jax


def tree_of(jax, rank, step):
    leaves = {k: jax.numpy.asarray(whole_numbers(rank, step, s), TYPES.get(k, "float32")) for k, s in SHAPES.items()}
    return {"back": [leaves["a"], leaves["b"]], "front": {"x": leaves["c"], "y": leaves["d"], "z": (leaves["e"], None)}}


def leaves_of(jax, tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def averaging(rank, folder):
    jax = load_jax()
    from dlcp.jax import GradientAverager

    with communicator(rank, folder, loss={"push": 0.0}, wire={"mtu": 9000}) as comm:
        averager = GradientAverager(comm, tree_of(jax, rank, 9), bucket_bytes=16_000)
        assert averager.names == ["['back'][0]", "['back'][1]", "['front']['x']", "['front']['y']", "['front']['z'][0]"]
        assert averager.classes["['back'][0]"] == 6 > averager.classes["['front']['z'][0]"]
        shared = averager.broadcast(tree_of(jax, rank, 9))
        assert digest(leaves_of(jax, shared)) == digest(leaves_of(jax, tree_of(jax, 0, 9)))
        seen = [digest(leaves_of(jax, shared))]

        def check(averages, step, scale=1):
            for leaf, like, shape in zip(
                jax.tree.leaves(averages), jax.tree.leaves(tree_of(jax, rank, step)), SHAPES.values(), strict=True
            ):
                assert leaf.dtype == like.dtype and leaf.shape == shape
                assert np.array_equal(np.asarray(leaf, np.float64), scale * mean_of(2, step, shape)), "not the exact mean"
            seen.append(digest(leaves_of(jax, averages)))

        # Outside; nothing is donated.
        gradients = tree_of(jax, rank, 0)
        check(averager.average(gradients), 0)
        assert digest(leaves_of(jax, gradients)) == digest(leaves_of(jax, tree_of(jax, rank, 0)))

        # Inside, once for each call and in order, also where nobody looks at the result.
        @jax.jit
        def twice(tree):
            averager.average(jax.tree.map(lambda x: 0 * x, tree))
            return averager.average(jax.tree.map(lambda x: 2 * x, tree))

        before = averager.passes
        for step in (1, 2):
            check(twice(tree_of(jax, rank, step)), step, 2)
        assert averager.passes == before + 4

        # Inside a loop.
        @jax.jit
        def summed(trees):
            def body(total, tree):
                return jax.tree.map(lambda a, b: a + b, total, averager.average(tree)), None

            return jax.lax.scan(body, jax.tree.map(lambda x: 0 * x[0], trees), trees)[0]

        trees = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *[tree_of(jax, rank, step) for step in (3, 4, 5)])
        total = summed(trees)
        for leaf, shape in zip(jax.tree.leaves(total), SHAPES.values(), strict=True):
            assert np.array_equal(np.asarray(leaf, np.float64), sum(mean_of(2, step, shape) for step in (3, 4, 5)))
        seen.append(digest(leaves_of(jax, total)))

        # Spread over this process's devices, and left so.
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
        spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
        tree = tree_of(jax, rank, 6)
        tree["back"][0] = jax.device_put(tree["back"][0], spread)
        averages = averager.average(tree)
        assert averages["back"][0].sharding == spread
        check(averages, 6)
        return seen


def test_the_average_is_the_mean_of_all_ranks_inside_compiled_functions_too():
    first, second = run_ranks(averaging, 2, timeout=110.0)
    assert first == second, "replicas differ"


def large(rank, folder):
    """Callbacks that read large arrays must not wait for the pool of threads that runs them."""
    jax = load_jax()
    from dlcp.jax import GradientAverager

    with communicator(rank, folder) as comm:
        tree = [jax.numpy.zeros((1500, 1000)) for _ in range(3)]
        averager = GradientAverager(comm, tree)

        @jax.jit
        def step(tree):
            return averager.average([jax.numpy.tanh(x @ x.T @ x) + 1 for x in tree])

        for _ in range(4):
            tree = step(tree)
        return digest(leaves_of(jax, tree)), averager.passes


def test_large_gradients_inside_compiled_functions_do_not_hang():
    first, second = run_ranks(large, 2, timeout=110.0)
    assert first == second and first[1] == 4


def lossy(rank, folder, kept):
    jax = load_jax()
    from dlcp.jax import GradientAverager

    contributed, delivered, digests = 0.0, 0.0, []
    for part in range(2):
        with communicator(rank, folder, faults=DROPS, name=f"part{part}", **LOSSY) as comm:
            averager = GradientAverager(comm, {"a": jax.numpy.zeros((300, 40)), "b": jax.numpy.zeros(9000)})
            if part:
                averager.load(f"{kept}/rank{rank}.npz")
            for step in range(3):
                mine = {
                    name: jax.numpy.asarray(whole_numbers(rank, step, shape), "float32")
                    for name, shape in (("a", (300, 40)), ("b", (9000,)))
                }
                averages = averager.average(mine)
                contributed += sum(np.asarray(leaf, np.float64).sum() for leaf in mine.values())
                delivered += sum(np.asarray(leaf, np.float64).sum() for leaf in averages.values()) * 2
                digests.append(digest(leaves_of(jax, averages)))
            lost = averager.metrics()["hook"]["lost_elements"]
            averager.save(f"{kept}/rank{rank}.npz")
            owed = sum(float(averager.residuals.get(k).values.astype(np.float64).sum()) for k in averager.residuals.keys())
            assert lost > 0
    return contributed, delivered, owed, digests


def test_what_is_lost_is_owed_over_a_restart(tmp_path):
    first, second = run_ranks(lossy, 2, str(tmp_path), timeout=110.0)
    assert first[3] == second[3], "replicas differ"
    # Whole numbers below 2^24: float32 adds them exactly.
    assert first[0] + second[0] == first[1] + first[2] + second[2]


def failing(rank, folder):
    jax = load_jax()
    from dlcp.jax import GradientAverager

    with pytest.raises(DLCPError) as caught, communicator(rank, folder) as comm:
        with pytest.raises(Exception, match="int32"):
            GradientAverager(comm, {"a": jax.numpy.zeros(3, "int32")})
        averager = GradientAverager(comm, {"a": jax.numpy.zeros(30)})
        step = jax.jit(averager.average)
        with averager.guard():
            step({"a": jax.numpy.ones(30)})
            comm.barrier()
            if rank == 1:
                averager.average({"a": jax.numpy.ones(30), "b": jax.numpy.ones(30)})
            step({"a": jax.numpy.ones(30)})["a"].block_until_ready()
    with pytest.raises(type(caught.value)):
        averager.check()
    return type(caught.value).__name__, str(caught.value)


def test_errors_leave_compiled_functions_as_what_they_were():
    (kind, text), (other, said) = run_ranks(failing, 2, timeout=110.0)
    assert (kind, other) == ("RemoteError", "ConfigError")
    assert "rank 1 failed" in text and "a pytree" in said


@pytest.mark.parametrize("where", [[], ["--in-jit"]], ids=["between", "inside"])
def test_the_example_learns_and_replicas_stay_equal(tmp_path, where):
    common = ["examples/train_jax.py", "--width", "32", "--batch-size", "32", "--epochs", "2", "--check"]
    done = launched(*common, "--json", str(tmp_path / "run.json"), *where)
    assert done.returncode == 0, done.stderr
    first, second = summaries(tmp_path / "run.json")
    assert first["digest"] == second["digest"] and first["accuracy"] > 0.8
    assert first["compared_steps"] == first["hook"]["passes"] == 44
