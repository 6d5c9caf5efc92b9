"""Torch's own tests of collectives, run over the backend dlcp."""

import os
import unittest

import pytest
import torch.distributed as dist

from tests.torch.groups import run_group

pytest.importorskip("expecttest", reason="torch's own tests need the package expecttest")

OPERATORS = ("sum", "product", "min", "max")
# Torch skips a test unless the backend is one of those it was written for.  It looks at a name in the environment, so each list
# runs under a name for which it is not skipped; the group is of dlcp in any case.
AS_GLOO = [
    *(f"test_all_reduce_coalesced_{op}" for op in OPERATORS),
    *(f"test_all_reduce_coalesced_full_group_{op}" for op in OPERATORS),
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_full_group",
    "test_all_gather_coalesced_simple",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_default_pg",
    "test_all_gather_object_subgroup",
    "test_batch_isend_irecv_gloo",
    "test_batch_isend_irecv_gloo_tags",
    "test_gather_object",
    "test_gather_object_subgroup",
    "test_grads_same_across_ranks_with_no_sync",
    "test_new_subgroups_with_group_param",
    "test_scatter_object_list",
]
AS_MPI = [
    *(
        f"test_{call}{group}_{op}"
        for call in ("all_reduce", "reduce")
        for group in ("", "_group", "_full_group")
        for op in OPERATORS
    ),
    *(
        f"test_{call}{group}"
        for call in ("broadcast", "gather", "scatter", "all_gather")
        for group in ("", "_group", "_full_group")
    ),
    *(f"test_all_to_all{group}" for group in ("", "_complex", "_group", "_full_group")),
    *(
        f"test_all_to_all_single_{split}_split{group}"
        for split in ("equal", "unequal")
        for group in ("", "_complex", "_group", "_full_group")
    ),
    *(f"test_barrier{group}" for group in ("", "_group", "_full_group")),
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_all_gather_complex",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_destroy_full_group",
    "test_destroy_group",
    "test_gather_checks",
    "test_irecv",
    "test_isend",
    "test_reduce_sum_twice",
    "test_scatter_checks",
    "test_scatter_complex",
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_static_graph_api_cpu",
]


def _run_suite(rank, world, name, tests, folder):
    import warnings

    warnings.simplefilter("ignore")
    os.environ.update(BACKEND=name, WORLD_SIZE=str(world), TEMP_DIR=folder, INIT_METHOD=f"file://{folder}/unused")
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    class Suite(DistributedTest._DistTestBase, TestCase):
        world_size = world

        def _barrier(self, *args, **kwargs):
            dist.barrier()

    Suite.rank = rank
    results = {}
    for test in tests:
        result = unittest.TestResult()
        Suite(test).run(result)
        problems = [*result.errors, *result.failures, *result.skipped]
        results[test] = problems[0][1] if problems else "passed"
        if problems and not result.skipped:
            # Ranks may no longer agree about what comes next.
            break
    return results


@pytest.mark.parametrize(("name", "tests"), [("gloo", AS_GLOO), ("mpi", AS_MPI)])
def test_torchs_own_tests_pass(name, tests, tmp_path):
    results = run_group(_run_suite, name, tests, str(tmp_path), world=4, timeout=170, group_timeout=60)
    assert results == [dict.fromkeys(tests, "passed")] * 4
