"""Host copies: of host buckets, and of a device's, for which the host itself stands in behind the same streams."""

import threading

import numpy as np
import pytest
import torch

from dlcp.collectives.residual import ResidualStore
from dlcp.errors import ConfigError
from dlcp.torch.devices import HostDevice
from dlcp.torch.layout import BucketLayout, LayerClasses, ParameterNames
from dlcp.torch.staging import BufferPool, Stage, stage_for
from tests.torch.fake import AsideDevice


def parameters():
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (0,), (7, 2))]


def make(kind):
    return Stage(HostDevice() if kind == "host" else AsideDevice())


@pytest.fixture(params=["host", "device"])
def stage(request):
    stage = make(request.param)
    yield stage
    stage.close()


LAYOUT = BucketLayout(parameters(), ParameterNames())


def no_tags(work):
    return torch.zeros(work.numel(), dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_bucket_goes_to_the_host_and_its_result_comes_back(stage, dtype):
    buffer = torch.arange(LAYOUT.elements, dtype=dtype)
    seen = []

    def tag(work):
        seen.append(work.clone())
        return torch.full((work.numel(),), 3, dtype=torch.uint8)

    staged = stage.load(buffer, LAYOUT, ResidualStore(), True, tag)
    future = stage.future()
    done = threading.Event()

    def start():
        staged.ready()
        assert staged.contribution.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        assert staged.contribution.tolist() == list(range(LAYOUT.elements)) == seen[0].tolist()
        assert not np.may_share_memory(staged.contribution, staged.result)
        assert staged.tags.tolist() == [3] * LAYOUT.elements
        staged.result[:] = staged.contribution * 2
        stage.deliver(staged, future)
        done.set()

    stage.launch(start)
    assert done.wait(10)
    assert future.wait() is buffer or torch.equal(future.wait(), buffer)
    assert buffer.dtype == dtype and buffer.tolist() == [2 * i for i in range(LAYOUT.elements)]


@pytest.mark.parametrize("skip_zero", [True, False])
def test_residuals_are_added_where_they_belong(stage, skip_zero):
    residuals = ResidualStore()
    residuals.record("parameter.0", np.full(12, 10, np.float32), [[0, 2], [11, 12]])
    residuals.record("parameter.1", np.full(5, 20, np.float32), [[1, 3]])
    residuals.record("parameter.3", np.full(14, 30, np.float32), [[13, 14]])
    residuals.record("elsewhere", np.full(14, 99, np.float32), [[0, 14]])
    buffer = torch.ones(LAYOUT.elements)
    buffer[12:17] = 0  # nobody uses parameter.1
    staged = stage.load(buffer, LAYOUT, residuals, skip_zero, no_tags)
    staged.ready()
    staged.give_back(residuals)
    expected = buffer.clone()
    expected[[0, 1, 11]] += 10
    expected[30] += 30
    if not skip_zero:
        expected[[13, 14]] += 20
    assert staged.contribution.tolist() == expected.tolist()
    assert set(residuals.keys()) == ({"parameter.1", "elsewhere"} if skip_zero else {"elsewhere"})
    assert buffer.sum() == LAYOUT.elements - 5, "the bucket itself changed"
    if skip_zero:
        debt = residuals.get("parameter.1")
        assert (debt.size, debt.ranges.tolist(), debt.values.tolist()) == (5, [[1, 3]], [20, 20])


def test_a_device_is_waited_for_in_the_background_and_in_order():
    stage = make("device")
    order, gate = [], threading.Event()
    stage.launch(lambda: (gate.wait(10), order.append(1)))
    stage.launch(lambda: order.append(2))
    assert order == [], "the caller did the waiting"
    gate.set()
    stage.close()
    assert order == [1, 2]
    stage.close()


def test_pinned_buffers_go_back_after_the_copy_has_read_them():
    stage = make("device")
    staged = stage.load(torch.ones(LAYOUT.elements), LAYOUT, ResidualStore(), True, no_tags)
    assert stage.pool.free_bytes == 0
    log = stage._device.log
    log.clear()
    stage.deliver(staged, stage.future())
    stage.close()
    assert log == ["returning begins", "mark on returning", "returning ends", "waited for mark on returning"]
    assert stage.pool.free_bytes > 0


def test_pool_reuses_and_trims():
    pool = BufferPool()
    first, owner = pool.take(100, torch.float32)
    assert first.dtype == torch.float32 and first.numel() == 100
    pool.give([owner])
    again, same = pool.take(50, torch.float64)
    assert same is owner and again.dtype == torch.float64
    other, second = pool.take(10, torch.float32)
    pool.give([same, second])
    smallest, best = pool.take(10, torch.float32)
    assert best is second and smallest.data_ptr() == other.data_ptr()
    pool.give([best])
    pool.trim(100)
    assert pool.free_bytes == 40
    empty, _ = pool.take(0, torch.float32)
    assert empty.numel() == 0


def test_other_devices_are_refused():
    assert stage_for(torch.device("cpu")).immediate
    with pytest.raises(ValueError, match="gradients on meta"):
        stage_for(torch.device("meta"))


# -- what a bucket holds


def test_names_come_from_the_model_or_are_counted():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    names = ParameterNames(model)
    assert [names(p) for p in model.parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    with pytest.raises(ConfigError, match=r"shape \(9,\) does not belong"):
        names(torch.nn.Parameter(torch.zeros(9)))
    counted = ParameterNames()
    first, second = parameters()[:2]
    assert [counted(second), counted(first), counted(second)] == ["parameter.0", "parameter.1", "parameter.0"]
    assert counted.bytes() == {"parameter.0": 20, "parameter.1": 48}


def layouts(names, *groups):
    return [BucketLayout(group, names) for group in groups]


def test_classes_follow_the_best_known_order():
    a, b, c, d = (torch.nn.Parameter(torch.zeros(10)) for _ in range(4))
    names = ParameterNames()
    classes = LayerClasses(names, 4)
    # The first pass: the last bucket is the front of the model, but inside a bucket the order is the model's.
    back, front = layouts(names, [c, d], [a, b])
    classes.observe(back, True, False)
    classes.observe(back, True, False)  # once more: the first pass ended there
    assert classes.of("parameter.0") == 0, "nothing is known yet"
    classes.observe(front, False, True)
    of = {key: classes.of(names(parameter)) for key, parameter in zip("abcd", (a, b, c, d), strict=True)}
    assert of == {"a": 3, "b": 2, "c": 1, "d": 0}
    version = classes.version
    for layout, last in ((back, False), (front, True)):
        classes.observe(layout, not last, last)
    assert classes.version == version, "the same buckets again are no news"
    # Rebuilt: buckets hold gradients as they become ready, the last layer's first.  This model runs d, b, c, a.
    for layout, last in zip(layouts(names, [a, c], [b, d]), (False, True), strict=True):
        classes.observe(layout, not last, last)
    of = {key: classes.of(names(parameter)) for key, parameter in zip("abcd", (a, b, c, d), strict=True)}
    assert of == {"d": 3, "b": 2, "c": 1, "a": 0}
    # A recorded order decides, whatever buckets say later.
    classes.record([names(p) for p in (b, a, d, c)])
    for layout, last in zip(layouts(names, [c], [d, a, b]), (False, True), strict=True):
        classes.observe(layout, not last, last)
    of = {key: classes.of(names(parameter)) for key, parameter in zip("abcd", (a, b, c, d), strict=True)}
    assert of == {"b": 3, "a": 2, "d": 1, "c": 0}
