"""FP8 over the wire: weights of sharded models, activations between ranks that share a layer, and rows on their way to
experts travel as codes.

>>> octile.torch.convert(model)
>>> print(octile.torch.distributed.shard_fp8(model))  # before fully_shard; says which weights travel in FP8
"""

from octile.torch.distributed.clip import clip_grad_norm_
from octile.torch.distributed.expert_parallel import ExpertParallel, SpreadReport, expert_parallel
from octile.torch.distributed.flat import FlatShards
from octile.torch.distributed.sharding import Sharding, shard_fp8
from octile.torch.distributed.tensor_parallel import (
    OctileColwiseParallel,
    OctilePrepareInput,
    OctileRowwiseParallel,
    TensorParallelReport,
    tensor_parallel_report,
)

__all__ = [
    "ExpertParallel",
    "FlatShards",
    "OctileColwiseParallel",
    "OctilePrepareInput",
    "OctileRowwiseParallel",
    "Sharding",
    "SpreadReport",
    "TensorParallelReport",
    "clip_grad_norm_",
    "expert_parallel",
    "shard_fp8",
    "tensor_parallel_report",
]
