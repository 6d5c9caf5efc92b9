"""Tags under DDP: the front of the model is urgent, large gradients are protected, whatever the buckets look like."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlcp.policy import Policy
from dlcp.torch import DLCPState, dlcp_hook
from tests.torch.fake import FakeCommunicator
from tests.torch.ranks import run_ranks


class Backwards(nn.Module):
    """Four equal layers, defined against the order in which they run."""

    def __init__(self):
        super().__init__()
        self.fourth, self.third, self.second, self.first = (nn.Linear(16, 16, bias=False) for _ in range(4))

    def forward(self, x):
        return self.fourth(torch.tanh(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))))


def tagged(rank, world, how):
    policy = Policy.from_dict({"classes": {"count": 4}, "protection": {"share": 0.25, "sample": 1}})
    communicator = FakeCommunicator(policy=policy, width=16)
    ddp = DistributedDataParallel(Backwards(), bucket_cap_mb=0.0015)
    names = {id(p): name.split(".")[0] for name, p in ddp.module.named_parameters()}
    buckets, lasts = [], []

    def hook(state: DLCPState, bucket) -> torch.futures.Future[torch.Tensor]:
        buckets.append((bucket.index(), bucket.is_last(), [names[id(p)] for p in bucket.parameters()]))
        return dlcp_hook(state, bucket)

    if how == "bare":
        ddp.register_comm_hook(DLCPState(communicator), hook)
    else:
        DLCPState(communicator).attach(ddp, hook=hook, record=how == "recorded")
    ends = []
    for _ in range(4):
        ddp.zero_grad()
        ddp(torch.randn(8, 16)).square().sum().backward()
        ends.append(len(buckets))
    classes, protected = [], []
    for begin, end in zip([0, *ends], ends, strict=False):
        of = {}
        for (_, _, parameters), (array, tags) in zip(buckets[begin:end], communicator.calls[begin:end], strict=True):
            assert tags.size == 16 * len(parameters)
            for i, name in enumerate(parameters):
                of[name] = sorted({int(tag) // 2 for tag in tags[16 * i : 16 * i + 16]})
            magnitude = np.abs(array.reshape(-1, 16)).mean(1)
            means = np.repeat(np.abs(array.reshape(-1, 256)).mean(1), 16)
            best = np.argsort(-magnitude / means, kind="stable")[: len(tags) // 4]
            protected.append(np.array_equal(np.flatnonzero(tags & 1), np.sort(best)))
        classes.append(of)
        lasts.append([(index, last) for index, last, _ in buckets[begin:end]])
    communicator.close()
    return classes, all(protected), lasts, buckets[-1][2]


RUN_ORDER = {"first": [3], "second": [2], "third": [1], "fourth": [0]}


@pytest.mark.parametrize("how", ["recorded", "attached", "bare"])
def test_the_front_of_the_model_is_urgent_and_large_gradients_are_protected(how):
    for classes, protected, lasts, front in run_ranks(tagged, how):
        assert protected
        # pytorch issue 63210: what is_last means.  Buckets come in the order of their index, the front of the model last.
        assert all(pairs == [(i, i == len(pairs) - 1) for i in range(len(pairs))] for pairs in lasts)
        assert len(lasts[-1]) > 1 and "first" in front
        assert classes[-1] == RUN_ORDER, "the order in which gradients become ready was not learnt"
        if how == "recorded":
            assert classes == [RUN_ORDER] * 4, "a recorded order counts from the first pass on"
        else:
            assert classes[0] != RUN_ORDER, "there was nothing to learn"
