"""Training on several GPUs in which activations travel as FP8 codes: styles of ``parallelize_module``."""

from octile.torch.distributed.tensor_parallel import (
    OctileColwiseParallel,
    OctilePrepareInput,
    OctileRowwiseParallel,
    TensorParallelReport,
    tensor_parallel_report,
)

__all__ = [
    "OctileColwiseParallel",
    "OctilePrepareInput",
    "OctileRowwiseParallel",
    "TensorParallelReport",
    "tensor_parallel_report",
]
