"""State of the recipe "delayed" as a checkpoint has it, for those who ask for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from octile._types import is_integer, refuse, wrong_type
from octile.torch._arguments import check_model
from octile.torch.scaling import Scaling


def _named(model: nn.Module) -> dict[str, Scaling]:
    check_model(model)
    states = {name: getattr(module, "_scaling", None) for name, module in model.named_modules()}
    return {name: state for name, state in states.items() if isinstance(state, Scaling)}


def scales_state_dict(model: nn.Module) -> dict[str, dict]:
    """Returns the state of the layers of recipe "delayed" by name: the number of updates as "steps", and a float32 copy
    of scales and maxima on the layer's device as "values". Call it between steps.

    ``model.state_dict()`` does not contain it. With both, and the optimizer's state, a resumed run computes the same
    bits as an uninterrupted one. Every rank has its own state, equal after ``reduce_scales``; under FSDP2 it is
    complete on each rank, not sharded. Layers on the meta device are left out.
    """
    return {
        name: {"steps": state.steps, "values": state.values.clone()}
        for name, state in _named(model).items()
        if state.values is not None
    }


def load_scales_state_dict(model: nn.Module, state: Mapping[str, Mapping]) -> int:
    """Restores the layers of recipe "delayed" from the result of ``scales_state_dict``, of a model with the same layers
    and settings. Returns their number. Load the weights first: loading a weight later restarts the warm-up.

    Raises TypeError or ValueError, and changes nothing, if layers, histories or numbers of experts differ.
    """
    if not isinstance(state, Mapping):
        raise wrong_type("state", state, "a dictionary by scales_state_dict")
    layers = _named(model)
    if layers.keys() != state.keys():
        missing, more = sorted(layers.keys() - state.keys()), sorted(state.keys() - layers.keys())
        difference = f"without layer {missing[0]}" if missing else f"with layer {more[0]}"
        allowed = f"is one of the same {len(layers)} layers of recipe 'delayed'; {len(missing)} are missing, {len(more)} more"
        raise refuse("state", f"one {difference}", allowed)
    for name, layer in layers.items():
        _check(f"state[{name!r}]", state[name], layer)
    for name, layer in layers.items():
        layer.resume(state[name]["steps"], state[name]["values"])
    return len(layers)


def _check(argument: str, given: Mapping, layer: Scaling) -> None:
    if not isinstance(given, Mapping) or given.keys() != {"steps", "values"}:
        raise refuse(argument, given, "is a dictionary of 'steps' and 'values'")
    if not is_integer(given["steps"], 0):
        raise refuse(f"{argument}['steps']", given["steps"], "are integers from 0 on")
    values, rows = given["values"], 2 + 2 * layer.recipe.history
    if not isinstance(values, torch.Tensor):
        raise wrong_type(f"{argument}['values']", values, "torch.Tensor")
    if values.dtype != torch.float32 or tuple(values.shape) != (rows * layer.experts,):
        what = f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
        allowed = f"is float32 [{rows * layer.experts}]: {layer.recipe.history} steps of {layer.experts} experts"
        raise refuse(f"{argument}['values']", what, allowed if layer.experts > 1 else allowed.partition(" of ")[0])
    if layer.values is None:
        raise refuse("model", "on the meta device", "is one in memory")
