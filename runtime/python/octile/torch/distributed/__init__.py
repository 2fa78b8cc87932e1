"""FP8 over the wire: weights of sharded models travel as codes, a byte an element.

>>> octile.torch.convert(model)
>>> print(octile.torch.distributed.shard_fp8(model))  # before fully_shard; says which weights travel in FP8
"""

from octile.torch.distributed.flat import FlatShards
from octile.torch.distributed.sharding import Sharding, shard_fp8

__all__ = ["FlatShards", "Sharding", "shard_fp8"]
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
