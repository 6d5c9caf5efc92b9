"""DLCP under PyTorch's DistributedDataParallel."""

from dlcp.torch.compress import bf16_compress_wrapper, fp16_compress_wrapper
from dlcp.torch.hook import dlcp_hook
from dlcp.torch.pipeline import PipelinedOptimizer
from dlcp.torch.state import DLCPState

__all__ = ["DLCPState", "PipelinedOptimizer", "bf16_compress_wrapper", "dlcp_hook", "fp16_compress_wrapper"]
