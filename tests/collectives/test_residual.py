"""Residuals: nothing is lost, nothing is counted twice, and nothing that is not finite comes back."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.collectives.ranges import indices, union
from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ConfigError

SIZES = {"embed": 700, "bias": 3, "head": 129}


@st.composite
def losses(draw):
    """What each of some steps loses, by tensor; ranges may overlap, repeat and be empty."""
    steps = draw(st.integers(1, 6))
    names = list(SIZES)

    def ranges(name):
        point = st.integers(0, SIZES[name])
        return [sorted(pair) for pair in draw(st.lists(st.tuples(point, point), max_size=5))]

    return [{name: ranges(name) for name in names} for _ in range(steps)]


@given(losses(), st.integers(0, 2**32 - 1))
def test_contributed_is_delivered_plus_residual_to_the_last_bit(steps, seed):
    """Gradients on a grid of 2^-20 add exactly in float64, so that any difference at all is a fault."""
    rng = np.random.default_rng(seed)
    store = ResidualStore()
    given_ = {name: np.zeros(size) for name, size in SIZES.items()}
    delivered = {name: np.zeros(size) for name, size in SIZES.items()}
    for step in steps:
        for name, lost in step.items():
            gradient = rng.integers(-(2**30), 2**30, SIZES[name]) * 2.0**-20
            given_[name] += gradient
            store.add_to(name, gradient)
            store.record(name, gradient, lost)
            arrived = gradient.copy()
            arrived[indices(union(lost, SIZES[name]))] = 0
            delivered[name] += arrived
    owed = {name: np.zeros(size) for name, size in SIZES.items()}
    mass = store.mass()
    l1 = 0.0
    for name in SIZES:
        store.add_to(name, owed[name])
        l1 += np.abs(owed[name]).sum()
        np.testing.assert_array_equal(delivered[name] + owed[name], given_[name])
    assert mass.l1 == l1
    assert len(store) == 0 and store.mass() == (0.0, 0)


@given(losses())
def test_debts_of_one_tensor_add_up(steps):
    store = ResidualStore()
    expected = np.zeros(SIZES["embed"])
    for number, step in enumerate(steps):
        flat = np.full(SIZES["embed"], 2.0**number)
        store.record("embed", flat, step["embed"])
        expected[indices(union(step["embed"], flat.size))] += 2.0**number
    flat = np.zeros(SIZES["embed"])
    store.add_to("embed", flat)
    np.testing.assert_array_equal(flat, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_is_counted_and_forgotten(dtype):
    store = ResidualStore()
    flat = np.arange(8, dtype=dtype)
    flat[[1, 3, 6]] = [np.nan, np.inf, -np.inf]
    assert store.record("w", flat, [[0, 5]]) == 5
    assert store.nonfinite == 2
    assert store.record("v", flat, [[6, 7]]) == 1
    assert store.nonfinite == 3 and "v" not in store
    into = np.zeros(8, dtype)
    store.add_to("w", into)
    assert into.tolist() == [0, 0, 2, 0, 4, 0, 0, 0]


def test_an_overflow_does_not_take_an_older_debt_with_it():
    store = ResidualStore()
    store.record("w", np.full(2, 5, np.float32), [[0, 2]])
    store.record("w", np.array([np.inf, 1], np.float32), [[0, 2]])
    into = np.zeros(2, np.float32)
    store.add_to("w", into)
    assert into.tolist() == [5, 6] and store.nonfinite == 1
    most = np.full(1, np.finfo(np.float32).max)
    store.record("w", most, [[0, 1]])
    store.record("w", most, [[0, 1]])
    assert store.nonfinite == 2 and "w" not in store


def test_records_are_copies_and_adding_twice_adds_once():
    store = ResidualStore()
    flat = np.ones(10)
    store.record("w", flat, [[2, 5]])
    flat[:] = 100
    into = np.zeros(10)
    assert store.add_to("w", into) == 3
    assert store.add_to("w", into) == 0
    assert into.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]


def test_record_values_is_record_without_the_tensor():
    one, other = ResidualStore(), ResidualStore()
    flat = np.arange(10.0)
    one.record("w", flat, [[1, 3], [3, 4], [8, 10]])
    other.record_values("w", 10, [[1, 3], [3, 4], [8, 10]], flat[[1, 2, 3, 8, 9]])
    assert repr(one.state_dict()) == repr(other.state_dict())
    with pytest.raises(ValueError, match="4 values for ranges of 5"):
        other.record_values("w", 10, [[0, 5]], np.zeros(4))
    with pytest.raises(ValueError, match="ascending"):
        other.record_values("w", 10, [[4, 5], [0, 1]], np.zeros(2))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), losses(), st.booleans())
def test_parts_of_one_array_are_its_tensors(lengths, steps, poison):
    """Several tensors end to end: the same as each for itself, and back again in one array."""
    edges = np.concatenate([[0], np.cumsum(lengths)])
    keys = [f"t{i}" for i in range(len(lengths))]
    together, apart = ResidualStore(), ResidualStore()
    total = int(edges[-1])
    expected = np.zeros(total)
    for number, step in enumerate(steps):
        flat = np.arange(1.0, total + 1) * 2.0**number
        if poison and total:
            flat[total // 2] = np.nan
        lost = union([[min(a, total), min(b, total)] for a, b in step["head"]], total)
        assert together.record_parts(keys, edges, lost, flat[indices(lost)]) == len(indices(lost))
        missing = np.zeros(total, bool)
        missing[indices(lost)] = True
        expected += np.where(missing & np.isfinite(flat), flat, 0)
        for i, key in enumerate(keys):
            part = missing[edges[i] : edges[i + 1]]
            apart.record(key, flat[edges[i] : edges[i + 1]], [[j, j + 1] for j in np.flatnonzero(part)])
    assert repr(sorted(together.state_dict()["entries"].items())) == repr(sorted(apart.state_dict()["entries"].items()))
    assert together.nonfinite == apart.nonfinite
    other = ResidualStore()
    other.load_state_dict(together.state_dict())
    ranges, values = together.take_parts(keys, edges, range(len(keys)))
    found = np.zeros(total)
    found[indices(ranges)] += values
    np.testing.assert_array_equal(found, expected)
    assert len(together) == 0
    some = [i for i in range(len(keys)) if i % 2]
    other.take_parts(keys, edges, some)
    assert not any(keys[i] in other for i in some)


def test_parts_that_do_not_fit_are_refused():
    store, edges = ResidualStore(), np.array([0, 4, 6])
    for ranges, values in (([[0, 7]], 7), ([[2, 4], [0, 1]], 3), ([[0, 3], [2, 4]], 5), ([[0, 3]], 2), ([[-1, 1]], 2)):
        with pytest.raises(ValueError, match="ranges"):
            store.record_parts(("a", "b"), edges, np.array(ranges), np.zeros(values))
    store.record("b", np.ones(3), [[0, 1]])
    store.record("a", np.ones(4), [[0, 1]])
    with pytest.raises(ValueError, match="b: has 2 elements"):
        store.take_parts(("a", "b"), edges, (0, 1))
    assert store.mass() == (2.0, 2)


def test_a_tensor_that_changed_its_size_is_refused_before_anything_changes():
    store = ResidualStore()
    store.record("w", np.ones(10), [[0, 10]])
    into = np.zeros(9)
    with pytest.raises(ValueError, match="w: has 9 elements, but its residual was recorded for 10"):
        store.add_to("w", into)
    with pytest.raises(ValueError, match="recorded for 10"):
        store.record("w", into, [[0, 1]])
    assert not into.any() and store.mass() == (10.0, 10)


@pytest.mark.parametrize("flat", [np.zeros(4, np.float16), np.zeros((2, 2)), np.zeros(4, np.int64)], ids=["half", "2-d", "int"])
def test_other_arrays_are_refused(flat):
    with pytest.raises(ValueError, match="float32 or float64 vector"):
        ResidualStore().record("w", flat, [[0, 1]])


def test_snapshot_undoes_a_step():
    store = ResidualStore()
    store.record("w", np.ones(4), [[0, 2]])
    before = store.snapshot()
    store.add_to("w", np.zeros(4))
    store.record("w", np.full(4, 9.0), [[1, 4]])
    store.record("v", np.array([np.nan]), [[0, 1]])
    store.restore(before)
    into = np.zeros(4)
    store.add_to("w", into)
    assert into.tolist() == [1, 1, 0, 0] and store.nonfinite == 0 and store.keys() == ()
    store.restore(before)
    assert store.mass() == (2.0, 2)


def test_scale_and_clear():
    store = ResidualStore()
    store.record("w", np.full(4, 3, np.float32), [[0, 2]])
    store.scale(0.5)
    assert store.mass() == (3.0, 2)
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite number above 0"):
            store.scale(factor)
    store.scale(1e38)
    store.scale(1e38)
    assert store.nonfinite == 2
    store.clear()
    assert len(store) == 0


@given(losses(), st.sampled_from([np.float32, np.float64]))
def test_state_survives_a_round_trip(steps, dtype):
    store = ResidualStore()
    for step in steps:
        for name, lost in step.items():
            store.record(name, np.arange(1, SIZES[name] + 1, dtype=dtype), lost)
    state = store.state_dict()
    other = ResidualStore()
    other.load_state_dict(copy.deepcopy(state))
    for name, size in SIZES.items():
        into, same = np.zeros(size, dtype), np.zeros(size, dtype)
        store.add_to(name, into)
        other.add_to(name, same)
        assert into.tobytes() == same.tobytes()


def one_entry():
    return {"size": 10, "ranges": np.array([[0, 2], [4, 5]]), "values": np.ones(3)}


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("version", lambda s: s.update(version=2)),
        ("nonfinite", lambda s: s.update(nonfinite=-1)),
        ("nonfinite", lambda s: s.update(nonfinite=True)),
        ("entries", lambda s: s.update(entries=[1])),
        ("entries.w", lambda s: s["entries"].update(w=3)),
        ("entries.w.size", lambda s: s["entries"]["w"].update(size="10")),
        ("entries.w.ranges", lambda s: s["entries"]["w"].update(ranges=[[0, 2], [4, 5]])),
        ("entries.w.ranges", lambda s: s["entries"]["w"].update(ranges=np.array([[0, 2], [1, 2]]))),
        ("entries.w.ranges", lambda s: s["entries"]["w"].update(ranges=np.array([[0, 2], [10, 11]]))),
        ("entries.w.ranges", lambda s: s["entries"]["w"].update(ranges=np.array([[-1, 1], [4, 5]]))),
        ("entries.w.values", lambda s: s["entries"]["w"].update(values=np.ones(4))),
        ("entries.w.values", lambda s: s["entries"]["w"].update(values=np.ones(3, np.int32))),
        ("entries.w.values", lambda s: s["entries"]["w"].update(values=np.array([1, np.nan, 1]))),
    ],
)
def test_malformed_state_is_refused_and_changes_nothing(key, change):
    store = ResidualStore()
    store.record("kept", np.ones(1), [[0, 1]])
    state = {"version": 1, "nonfinite": 0, "entries": {"w": one_entry()}}
    change(state)
    with pytest.raises(ConfigError) as caught:
        store.load_state_dict(state, "rank0.pt")
    assert caught.value.key == key and caught.value.source == "rank0.pt"
    assert store.keys() == ("kept",)
    store.load_state_dict({"version": 1, "nonfinite": 0, "entries": {"w": one_entry()}})
    assert store.mass() == (3.0, 3)
