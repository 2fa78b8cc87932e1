"""The MLPs of experts whose activation the quantisers compute: act(g) * u, or act(g) alone, weighted by the scores of the
rows, is never in memory in another type than FP8, and neither are the gradients of g and u."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

from octile.torch._operators import ops
from octile.torch.derivatives import differentiable_once, wanted_gradient
from octile.torch.gated import ACTIVATIONS
from octile.torch.gated_trace import Structure, activation_of, structure_of
from octile.torch.grouped import RECIPES, group_gradients, group_operands
from octile.torch.layer import Layer
from octile.torch.mixture import Route, has_own_derivatives, sums_of, words_of
from octile.torch.recipes import Recipe
from octile.torch.snapshot import has_global_hooks, is_watched


#: Recipes whose quantisers find scales of rows within groups, and of 128 rows of a group.
_FUSED = frozenset(
    recipe.code
    for recipe in (Recipe(name, scales) for name in RECIPES for scales in ("pow2", "f32"))
    if recipe.activation.granularity == recipe.gradient.granularity == "1x128"
)


class _Mlps(torch.autograd.Function):
    """For each token the sum over its rows of scores * act(inner) down^T, where inner = x up^T. Kept are inner and the
    transposed FP8 copy of the rows of x. inner is a result too, by which a second derivative finds the way to x."""

    @staticmethod
    def forward(ctx, x, up, down, scores, order, places, offsets, top_k, activation, gated, code, words):
        needs_x, needs_up, _, needs_scores = ctx.needs_input_grad[:4]
        ctx.needs_product = needs_x or needs_up or needs_scores
        rows = x[order // top_k]
        inner, *of_x = ops.experts_forward(rows, up, offsets, code, needs_up, needs_x, None, words[0])
        gate, factor = _parts(inner, gated)
        h, h_scales, *_ = ops.quantize_activation(gate, factor, activation, code, True, False, offsets, _factors(scores))
        given = code, False, ctx.needs_product, None, words[1], None, h, h_scales
        y = ops.experts_forward(gate, down, offsets, *given)[0]
        ctx.save_for_backward(down, inner, up, scores, *of_x, order, places, offsets)
        ctx.set_materialize_grads(False)
        ctx.top_k, ctx.activation, ctx.gated, ctx.code, ctx.words = top_k, activation, gated, code, words
        # The parameters themselves, because a saved tensor may come back as another one, without main_grad.
        ctx.parameters = tuple(w if w.requires_grad and w.is_leaf else None for w in (up, down))
        ctx.is_linear = ctx.transposed = False
        return sums_of(y, places, top_k), inner

    @staticmethod
    @differentiable_once
    def backward(ctx, saved, d_sums):
        down, inner, up, scores, x_codes, x_scales, order, places, offsets = saved
        of_up, of_down = (wanted_gradient(ctx, 1 + i, parameter) for i, parameter in enumerate(ctx.parameters))
        gate, factor = _parts(inner, ctx.gated)
        dy, given = d_sums[order // ctx.top_k], (offsets, _factors(scores))
        kept = [dy.new_empty(0, dtype=torch.uint8)] * 2
        if of_down[0]:
            kept = ops.quantize_activation(gate, factor, ctx.activation, ctx.code, False, True, *given)[2:4]
        ctx.state = None, ctx.words[1]
        operands = down, *kept, offsets
        dh, d_down = group_gradients(ctx, operands, dy, ctx.needs_product, *of_down, ctx.parameters[1])
        del dy, kept, operands
        if not ctx.needs_product:
            return None, None, d_down, *(None,) * 9
        d_scores = None
        if ctx.needs_input_grad[3]:
            h = ACTIVATIONS[ctx.activation](gate)
            h = h if factor is None else h * factor
            d_scores = (dh * h).sum(1, keepdim=True, dtype=torch.float32).to(scores.dtype)
        needs_x = ctx.needs_input_grad[0]
        d_rows = d_up = None
        if needs_x or of_up[0]:
            copies = ops.quantize_gradients(
                dh, gate, factor, ctx.activation, ctx.code, needs_x, of_up[0], False, *given
            )  # fmt: skip
            copies = (*(copies[:2] if needs_x else (None, None)), *(copies[2:4] if of_up[0] else (None, None)))
            del dh
            ctx.state = None, ctx.words[0], None, 0, *copies
            operands = up, x_codes, x_scales, offsets
            d_rows, d_up = group_gradients(ctx, operands, inner, needs_x, *of_up, ctx.parameters[0])
        dx = sums_of(d_rows, places, ctx.top_k) if needs_x else None
        return dx, d_up, d_down, d_scores, *(None,) * 8


def _parts(inner: torch.Tensor, gated: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns what is gated, and what is multiplied."""
    return tuple(inner.chunk(2, -1)) if gated else (inner, None)


def _factors(scores: torch.Tensor) -> torch.Tensor:
    return scores.reshape(-1).float().contiguous()


def _forward(x, up, down, scores, order, places, offsets, top_k, activation, gated, code, words) -> torch.Tensor:
    """The same without gradients."""
    inner = ops.experts_forward(x[order // top_k], up, offsets, code, False, False, None, words[0])[0]
    gate, factor = _parts(inner, gated)
    h, h_scales, *_ = ops.quantize_activation(gate, factor, activation, code, True, False, offsets, _factors(scores))
    given = code, False, False, None, words[1], None, h, h_scales
    return sums_of(ops.experts_forward(gate, down, offsets, *given)[0], places, top_k)


def may_fuse(layers: tuple[Layer, Layer], plain: bool) -> bool:
    """Returns whether the layers of up and down, as they compute now, leave the activation to a quantiser: one whose
    scales are of 1x128 blocks. plain: this call is without FP8."""
    up, down = layers
    if plain or up._code is None or up._code != down._code or not has_own_derivatives():
        return False
    for layer in layers:
        watched = layer._watch is not None and layer._watch.each_call
        if watched or layer._is_plain() or layer._scaling is not None or layer.recipe.plain or layer.transposed:
            return False
    return up._code in _FUSED


def expert_mlps(
    layers: tuple[Layer, Layer], weights: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, way: Route,
    scores: torch.Tensor, activation: str, gated: bool,
) -> torch.Tensor:  # fmt: skip
    """Returns for each token of x [tokens, k] the sum over its rows of scores * (act(x up^T) down^T): [tokens, n].

    layers: those of up and down, for which ``may_fuse``. weights: theirs. scores: [rows, 1], in the order of the rows.
    gated: up has the outputs of gate and up, in this order.
    """
    x, offsets = group_operands(x, weights[0], way.offsets)
    code = layers[0]._call_state(x)[0]
    layers[1]._call_state(x)
    arguments = *weights, scores, way.order, way.places, offsets, way.top_k, activation, gated, code
    words = tuple(map(words_of, layers))
    tensors = x, *weights, scores
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Mlps.apply(x, *arguments, words)[0]
    return _forward(x, *arguments, words)


# ---- which activations


class _Around(nn.Module):
    """An MLP with a gate of its own around SiLU."""

    def __init__(self, apply_gate: Callable) -> None:
        super().__init__()
        with torch.device("meta"):
            self.first, self.last = nn.Linear(2, 8, bias=False), nn.Linear(4, 2, bias=False)
        self.act_fn, self.apply_gate = nn.SiLU(), apply_gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.apply_gate(self, self.first(x)))


@functools.cache
def is_usual_gate(apply_gate: Callable) -> bool:
    """Returns whether a method of experts computes act_fn(gate) * up, of [..., gate before up], and nothing else."""
    found = structure_of(_Around(apply_gate))
    return isinstance(found, Structure) and found.gated and found.up is None and found.activation == "silu"


def activation_now(experts: nn.Module, gate: Callable | None) -> str | None:
    """Returns the activation of experts of transformers, if it is one of ``ACTIVATIONS`` and nothing is called around it.
    gate: their method ``_apply_gate`` as it was when it was found to be the usual one; None without a gate."""
    act_fn = getattr(experts, "act_fn", None)
    if not isinstance(act_fn, nn.Module) or is_watched(act_fn) or has_global_hooks():
        return None
    if gate is not None and ("_apply_gate" in experts.__dict__ or type(experts)._apply_gate is not gate):
        return None
    name = activation_of(act_fn)
    return name if name in ACTIVATIONS else None
