"""Averages of gradients in TensorFlow and Keras, eagerly and in graphs; skipped where there is no TensorFlow."""

import os
from importlib.util import find_spec

import numpy as np
import pytest

from dlcp.errors import DLCPError
from tests.collectives.processes import run_ranks
from tests.frameworks.adapted import DROPS, LOSSY, communicator, digest, mean_of, whole_numbers
from tests.frameworks.test_numpy_adapter import launched, summaries

pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="TensorFlow is not installed: pip install 'dlcp[tensorflow]'"
)

SHAPES = [(300, 40), (), (2000,), (0, 3), (5, 7)]
TYPES = ["float32", "float32", "bfloat16", "float32", "float16"]


def load_tensorflow():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    return tf


def tensors(tf, rank, step):
    # By way of float64: TensorFlow casts no integers to some of the types.
    return [tf.cast(tf.constant(whole_numbers(rank, step, s).astype(float)), t) for s, t in zip(SHAPES, TYPES, strict=True)]


def averaging(rank, folder):
    tf = load_tensorflow()
    from dlcp.tensorflow import GradientAverager

    with communicator(rank, folder, loss={"push": 0.0}, wire={"mtu": 9000}) as comm:
        variables = [tf.Variable(tensor) for tensor in tensors(tf, rank, 9)]
        averager = GradientAverager(comm, variables, bucket_bytes=16_000)
        averager.broadcast(variables)
        assert digest(v.numpy() for v in variables) == digest(t.numpy() for t in tensors(tf, 0, 9))
        seen = []

        def check(averages, step):
            for tensor, shape, kind in zip(averages, SHAPES, TYPES, strict=True):
                assert tensor.dtype == kind and tuple(tensor.shape) == shape
                assert np.array_equal(tensor.numpy().astype(float), mean_of(2, step, shape)), "not the exact mean"
            seen.append(digest(t.numpy() for t in averages))

        check(averager.average(tensors(tf, rank, 0)), 0)

        @tf.function
        def twice(given):
            averager.average([0 * tensor for tensor in given])  # runs, though nobody looks at it
            return averager.average(given)

        before = averager.passes
        for step in (1, 2):
            check(twice(tensors(tf, rank, step)), step)
        assert averager.passes == before + 4

        # What the loss does not depend on counts as zeros, also on one rank only; sparse gradients are made dense.
        table = tf.Variable(tf.zeros((6, 2)))
        other = GradientAverager(comm, [table, tf.Variable(tf.zeros(3))])
        for step in (lambda g: other.average(g), tf.function(lambda g: other.average(g))):
            sparse = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([rank, 4, 4]), tf.constant([6, 2]))
            rows, unused = step([sparse, tf.ones(3) if rank else None])
            assert rows.numpy()[:, 0].tolist() == [0.5, 0.5, 0, 0, 2, 0] and unused.numpy().tolist() == [0.5] * 3
            assert tuple(rows.shape) == (6, 2)
        return seen


def test_the_average_is_the_mean_of_all_ranks_in_graphs_too():
    first, second = run_ranks(averaging, 2, timeout=110.0)
    assert first == second and first, "replicas differ"


def fitted(rank, folder, wrapped):
    """Keras' own loop on half the data each, or on all of it alone: the same model, but for rounding."""
    tf = load_tensorflow()
    keras = tf.keras
    from dlcp.tensorflow import GradientAverager

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(64, 8)).astype("float32"), random.normal(size=(64, 1)).astype("float32")
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)
    with communicator(rank, folder, loss={"push": 0.0}) as comm:
        averager = GradientAverager(comm, model.trainable_variables)
        if wrapped:
            optimizer = averager.wrap(optimizer)
            assert type(optimizer).__name__ == "SGD" and optimizer.global_clipnorm == 0.5
            # Batch k of 8 samples is cut into halves of 4.
            mine = np.concatenate([np.arange(k * 8 + 4 * rank, k * 8 + 4 * rank + 4) for k in range(8)])
            inputs, targets = inputs[mine], targets[mine]
        with pytest.raises(TypeError, match="optimizer of Keras 3"):
            averager.wrap(object())
        model.compile(optimizer, loss="mse", jit_compile=False)
        with averager.guard():
            model.fit(inputs, targets, batch_size=4 if wrapped else 8, epochs=3, shuffle=False, verbose=0)
        assert averager.passes == (24 if wrapped else 0)
    return [array.tolist() for array in model.get_weights()], digest(model.get_weights())


def test_a_wrapped_optimizer_trains_with_fit_as_one_rank_would_with_all_data():
    (weights, first), (_, second) = run_ranks(fitted, 2, True, timeout=110.0)
    assert first == second, "replicas differ"
    alone = run_ranks(fitted, 2, False, timeout=110.0)[0][0]
    for ours, theirs in zip(weights, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def lossy(rank, folder, kept):
    tf = load_tensorflow()
    from dlcp.tensorflow import GradientAverager

    contributed, delivered, digests = 0.0, 0.0, []
    for part in range(2):
        with communicator(rank, folder, faults=DROPS, name=f"part{part}", **LOSSY) as comm:
            averager = GradientAverager(comm, [tf.Variable(tf.zeros((300, 40))), tf.Variable(tf.zeros(9000))])
            if part:
                averager.load(f"{kept}/rank{rank}.npz")
            for step in range(3):
                mine = [tf.constant(whole_numbers(rank, step, shape), "float32") for shape in ((300, 40), (9000,))]
                averages = averager.average(mine)
                contributed += sum(float(tf.reduce_sum(tf.cast(t, "float64"))) for t in mine)
                delivered += sum(float(tf.reduce_sum(tf.cast(t, "float64"))) for t in averages) * 2
                digests.append(digest(t.numpy() for t in averages))
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
    tf = load_tensorflow()
    from dlcp.tensorflow import GradientAverager

    with pytest.raises(DLCPError) as caught, communicator(rank, folder) as comm:
        averager = GradientAverager(comm, [tf.Variable(tf.zeros(30))])
        step = tf.function(averager.average)
        with averager.guard():
            step([tf.ones(30)])
            comm.barrier()
            if rank == 1:
                averager.average([tf.ones(30), tf.ones(30)])
            step([tf.ones(30)])
    with pytest.raises(type(caught.value)):
        averager.check()
    return type(caught.value).__name__, str(caught.value)


def test_errors_leave_graphs_as_what_they_were():
    (kind, text), (other, said) = run_ranks(failing, 2, timeout=110.0)
    assert (kind, other) == ("RemoteError", "ConfigError")
    assert "rank 1 failed" in text and "2 of them" in said


@pytest.mark.parametrize("where", [[], ["--in-jit"]], ids=["eager", "graph"])
def test_the_example_learns_and_replicas_stay_equal(tmp_path, where):
    common = ["examples/train_tensorflow.py", "--width", "32", "--batch-size", "32", "--epochs", "2", "--check"]
    done = launched(*common, "--json", str(tmp_path / "run.json"), *where)
    assert done.returncode == 0, done.stderr
    first, second = summaries(tmp_path / "run.json")
    assert first["digest"] == second["digest"] and first["accuracy"] > 0.8
    assert first["compared_steps"] == first["hook"]["passes"] == 44
