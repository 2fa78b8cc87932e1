"""``clip_grad_norm_`` for models of which some parameters are divided among ranks and others are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from octile._types import refuse, wrong_type
from octile.torch.layer import local_of


def clip_grad_norm_(
    parameters: nn.Module | torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scales the gradients of ``parameters`` so that their norm is at most ``max_norm``, as
    ``torch.nn.utils.clip_grad_norm_`` does, and returns the norm that they had, a plain float32 tensor.

    The norm is that of whole gradients: parts that lie on other ranks are summed over the mesh of each parameter, as
    after ``ExpertParallel``, the tensor-parallel styles and ``fully_shard``, on any mix of meshes. Plain tensors count
    once, as this rank has them. All ranks of the meshes call it with parameters in the same order; a rank may have no
    gradients. norm_type: above 0, also infinity. foreach: as PyTorch has it.

    Raises ValueError and TypeError for other arguments, and RuntimeError, before anything is scaled, if the norm is not
    finite and ``error_if_nonfinite`` is set.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise refuse("norm_type", norm_type, "are numbers above 0")
    measured: dict[tuple, list[torch.Tensor]] = {}  # gradients by the ranks that have their other parts
    scaled: dict[torch.device, list[torch.Tensor]] = defaultdict(list)
    for parameter in parameters:
        if not isinstance(parameter, torch.Tensor):
            raise wrong_type("parameters", parameter, "a module, a tensor or tensors")
        found = measured.setdefault(_dividing(parameter), [])
        if (gradient := parameter.grad) is not None:
            gradient = gradient.detach()
            scaled[gradient.device].append(local_of(gradient))
            if hasattr(parameter, "placements") and gradient.placements != parameter.placements:
                gradient = gradient.redistribute(placements=parameter.placements)  # sums that are not finished
            found.append(local_of(gradient))
    if not parameters:
        return torch.tensor(0.0)
    device = local_of(parameters[0]).device
    norms = [_norm_of(found, groups, norm_type, foreach, device) for groups, found in measured.items()]
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"octile: the norm of the gradients is {total.item()}; nothing is scaled")
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for place, gradients in scaled.items():
            if foreach is False:
                for gradient in gradients:
                    gradient.mul_(factor.to(place))
            else:
                torch._foreach_mul_(gradients, factor.to(place))
    return total


def _dividing(parameter: torch.Tensor) -> tuple[dist.ProcessGroup, ...]:
    """Returns the groups of ranks that have the other parts of a parameter."""
    if not hasattr(parameter, "to_local"):
        return ()
    places = enumerate(parameter.placements)
    return tuple(parameter.device_mesh.get_group(i) for i, place in places if not place.is_replicate())


def _norm_of(found: list[torch.Tensor], groups: tuple, norm_type: float, foreach, device) -> torch.Tensor:
    """Returns the norm of gradients whose other parts lie on the ranks of ``groups``."""
    norm = torch.nn.utils.get_total_norm(found, norm_type, foreach=foreach) if found else torch.zeros(())
    norm = norm.to(device, torch.float32)
    for group in groups:
        if norm_type == float("inf"):
            dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
        else:
            powers = norm**norm_type
            dist.all_reduce(powers, group=group)
            norm = powers ** (1 / norm_type)
    return norm
