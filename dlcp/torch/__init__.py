"""DLCP under PyTorch: a hook for DistributedDataParallel, a pipelined optimizer, and the process group backend ``dlcp``."""

from dlcp.torch.allowance import allow_loss
from dlcp.torch.backend import register_backend
from dlcp.torch.compress import bf16_compress_wrapper, fp16_compress_wrapper
from dlcp.torch.hook import dlcp_hook
from dlcp.torch.options import ProcessGroupOptions
from dlcp.torch.pipeline import PipelinedOptimizer
from dlcp.torch.process_group import ProcessGroupDLCP
from dlcp.torch.state import DLCPState

__all__ = [
    "DLCPState",
    "PipelinedOptimizer",
    "ProcessGroupDLCP",
    "ProcessGroupOptions",
    "allow_loss",
    "bf16_compress_wrapper",
    "dlcp_hook",
    "fp16_compress_wrapper",
    "register_backend",
]

register_backend()
