"""The processes that share work: those of torchrun, or this one alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def joined(device: str) -> Iterator[bool]:
    """Joins the process group of torchrun, or makes one of this process. Yields whether the rank is the first."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if device == "cuda" else "gloo", **alone)
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


def everywhere(good: bool, device: str) -> bool:
    """Returns whether it is true on every rank."""
    word = torch.tensor(int(good), device=device)
    dist.all_reduce(word, dist.ReduceOp.MIN)
    return bool(word.item())


def equal(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Returns whether the tensors have the same bits, on whichever device they are."""

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)

    return all(p.shape == q.shape and bits(p).equal(bits(q)) for p, q in zip(a, b, strict=True))
