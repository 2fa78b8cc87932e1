"""What ranks have to agree on before they reduce and gather together."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist

from octile._types import refuse


def check_ranks_agree(lines: list[str], what: str, group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Raises ValueError on every rank of a group unless all have the same lines. The host waits.

    lines: a description, a line for each thing. what: the argument that they describe.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    number = int.from_bytes(digest[:7], "little")
    pair = torch.tensor([number, -number], dtype=torch.int64, device=device)
    dist.all_reduce(pair, dist.ReduceOp.MAX, group)
    largest, smallest = pair.tolist()
    if largest == -smallest:
        return
    everyones: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyones, lines, group)
    rank = next(rank for rank, other in enumerate(everyones) if other != everyones[0])
    first, other = ("; ".join(_only_of(everyones, a, b)) or "fewer" for a, b in ((0, rank), (rank, 0)))
    raise refuse(what, f"{first} on rank 0 of the group, {other} on rank {rank}", "is the same on all ranks")


def _only_of(everyones: list[list[str]], rank: int, other: int) -> list[str]:
    """Returns the first line that one rank has and the other has not."""
    others = set(everyones[other])
    return [line for line in everyones[rank] if line not in others][:1]
