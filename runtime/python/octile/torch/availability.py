"""Whether layers can compute in FP8 on a device, and why not."""

from __future__ import annotations

import torch

from octile._types import refuse
from octile.torch._operators import ops
from octile.torch.recipes import Recipe, as_recipe

_SIZE = 128  # of the layer that is tried


def why_unavailable(device: torch.device | str | int | None = None, recipe: Recipe | str = "blockwise") -> str | None:
    """Returns a sentence with the reason why layers of a recipe cannot compute on a device, or None if they can.

    device: a CUDA device, by default the current one, or "cpu", whose reference executor is for tests. It prepares the
    smallest layer for training, which takes some seconds if its kernels are not cached. ``python -m octile doctor``
    says more about a machine. Raises ValueError for other devices and recipes.
    """
    recipe = as_recipe(recipe)
    device = torch.device("cuda" if device is None else device)
    if device.type not in ("cpu", "cuda"):
        raise refuse("device", str(device), "are None, CUDA devices and 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        return f"PyTorch finds {torch.cuda.device_count()} CUDA devices"
    sample = torch.empty(0, dtype=torch.bfloat16, device=device)
    for code in {recipe.code, recipe.current_code}:
        history = recipe.history if recipe.is_delayed else 0
        try:
            ops.prepare_linear(sample, sample, None, None, code, _SIZE, _SIZE, 1, _SIZE, True, False, history)
        except (NotImplementedError, RuntimeError) as error:
            return str(error).splitlines()[0]
    return None


def is_available(device: torch.device | str | int | None = None, recipe: Recipe | str = "blockwise") -> bool:
    """Returns whether layers of a recipe can compute on a device; ``why_unavailable`` says why not."""
    return why_unavailable(device, recipe) is None
