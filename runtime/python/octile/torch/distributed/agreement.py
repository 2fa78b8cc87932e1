"""The facts that ranks have to agree on before they reduce and gather together."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist

from octile._types import refuse


def check_ranks_agree(
    lines: list[str],
    what: str,
    group: dist.ProcessGroup | None,
    device: torch.device,
    problem: Exception | None = None,
) -> None:
    """Raises on every rank of a group unless all have the same lines and none has a problem: a rank's own problem, and
    ValueError on the others. The host waits.

    lines: a description, a line for each thing. what: the argument that they describe. problem: why this rank refuses
    the argument, in the place of lines.
    """
    said = lines if problem is None else [f"{type(problem).__name__}: {problem}"]
    digest = hashlib.sha256("\n".join(said).encode()).digest()
    number = int.from_bytes(digest[:7], "little")
    pair = torch.tensor([number, -number], dtype=torch.int64, device=device)
    dist.all_reduce(pair, dist.ReduceOp.MAX, group)
    largest, smallest = pair.tolist()
    if largest != -smallest:
        _tell_difference(said, what, group, problem is not None)
    if problem is not None:
        raise problem


def _tell_difference(said: list[str], what: str, group: dist.ProcessGroup | None, refuses: bool) -> None:
    """Raises the first difference between the ranks, on those that do not refuse the argument themselves."""
    everyones: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, (refuses, said), group)
    if refuses:
        return
    for rank, (theirs, lines) in enumerate(everyones):
        if theirs:
            raise refuse(what, f"refused on rank {rank} of the group, {lines[0]}", "is one that no rank refuses")
    everyones = [lines for _, lines in everyones]
    rank = next(rank for rank, other in enumerate(everyones) if other != everyones[0])
    first, other = ("; ".join(_only_of(everyones, a, b)) or "fewer" for a, b in ((0, rank), (rank, 0)))
    raise refuse(what, f"{first} on rank 0 of the group, {other} on rank {rank}", "is the same on all ranks")


def _only_of(everyones: list[list[str]], rank: int, other: int) -> list[str]:
    """Returns the first line that one rank has and the other has not."""
    others = set(everyones[other])
    return [line for line in everyones[rank] if line not in others][:1]
