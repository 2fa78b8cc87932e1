"""The computation of a module of spread experts in a call."""

from __future__ import annotations

import torch
from torch.distributed.tensor import Partial

from octile._types import refuse
from octile.torch._arguments import FLOATS
from octile.torch.derivatives import is_in_forward_mode, is_transformed
from octile.torch.distributed import expert_functions as functions
from octile.torch.distributed.expert_exchange import Call, Spread, Way, find_way
from octile.torch.expert_modules import ExpertsOfTorchtitan, ExpertsOfTransformers, one_hot_of, swiglu
from octile.torch.functional import as_operands
from octile.torch.layer import Layer
from octile.torch.mixture import route, rows_of, tokens_of


def _sends_fp8(layer: Layer) -> bool:
    """Returns whether a layer computes now by the operators that take rows in FP8."""
    if layer._is_plain() or layer._scaling is not None or layer.recipe.plain:
        return False
    if is_transformed() or is_in_forward_mode():
        return False
    return layer._watch is None or not layer._watch.each_call


def _why_refused(x: torch.Tensor, spread: Spread) -> Exception | None:
    if x.dim() != 2 or x.shape[1] != spread.columns:
        return refuse("x.shape", tuple(x.shape), f"is (rows, {spread.columns})")
    if x.dtype not in FLOATS:
        return refuse("x.dtype", x.dtype, "are torch.bfloat16, torch.float16 and torch.float32")
    return None


@torch.compiler.disable
def begin(spread: Spread, layers: tuple[Layer, ...], x: torch.Tensor, counts: torch.Tensor) -> tuple[Way, bool]:
    """Returns the way of a call's rows, and whether they travel in FP8. counts: rows of each expert of all ranks."""
    refused = _why_refused(x, spread)
    fp8 = spread.fp8 and all(map(_sends_fp8, layers))
    recorded = torch.is_grad_enabled()
    dtype = torch.float32 if refused else as_operands(x, None, None)[0].dtype
    gradients = recorded and x.requires_grad, recorded
    return find_way(spread, counts, Call(fp8, spread.columns, dtype, *gradients), refused), fp8


@torch.compiler.disable
def of_transformers(
    module: ExpertsOfTransformers, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The result of ``expert_modules.registered`` for experts that are spread."""
    spread = module.spread
    up_name = "gate_up_proj" if module.has_gate else "up_proj"
    (up, up_weight), (last, down_weight) = module._layer_of(up_name), module._layer_of("down_proj")
    at_source = route(chosen, spread.experts)
    way, fp8 = begin(spread, (up, last), x, at_source.offsets.diff())
    source = functions.Source(at_source.order, at_source.places, at_source.top_k)
    (inner,) = functions.first((up,), (up_weight,), x, source, way, fp8)
    if module.has_bias:
        of_rows = one_hot_of(way.offsets, inner)
        inner = torch.addmm(inner, of_rows, module._local(up_name + "_bias").to(inner.dtype))
    activation = module._apply_gate if module.has_gate else module.act_fn
    y = functions.second(last, down_weight, activation, (inner,), way, fp8)
    scores = rows_of(weights.reshape(-1, 1), at_source, 1)
    result = tokens_of((y * scores).to(y.dtype), at_source)
    if module.has_bias:
        # One small tensor of all ranks, whose gradients are added.
        whole = module._parameters["down_proj_bias"].full_tensor(grad_placements=[Partial()])
        shares = tokens_of(one_hot_of(at_source.offsets, y) * scores.to(y.dtype), at_source)
        result = torch.addmm(result, shares, whole.to(result.dtype))
    return result.to(x.dtype)


@torch.compiler.disable
def of_torchtitan(module: ExpertsOfTorchtitan, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The result of ``ExpertsOfTorchtitan.forward`` for experts that are spread."""
    (w1, w1_weight), (w3, w3_weight), (w2, w2_weight) = map(module._layer_of, ("w1", "w3", "w2"))
    given, x = x, x.bfloat16()
    # Counts are not known to the host: rows behind those that are counted stay here.
    counts = counts.cumsum(0).clamp(0, x.shape[0]).diff(prepend=counts.new_zeros(1))
    way, fp8 = begin(module.spread, (w1, w3, w2), x, counts)
    inner = functions.first((w1, w3), (w1_weight, w3_weight), x[: way.rows], None, way, fp8)
    y = functions.second(w2, w2_weight, swiglu, inner, way, fp8)
    return torch.nn.functional.pad(y, (0, 0, 0, x.shape[0] - way.rows)).type_as(given)


#: By the class of converted experts.
FORWARD = {ExpertsOfTransformers: of_transformers, ExpertsOfTorchtitan: of_torchtitan}
