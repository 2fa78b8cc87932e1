"""FP8 operands of layers whose tensors lie on several ranks: quantised where they are, and sent as codes.

The whole that arrives has the bits of quantising the gathered tensor, because no block of 1x128 elements and of its
transposed copy lies on two ranks, and scales of whole tensors are made of all ranks' maxima.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from octile.torch._operators import ops
from octile.torch.distributed.ranks import Gathering, Ranks, Rows, largest, start_gather, wait
from octile.torch.recipes import all_codes, as_recipe, recipe_of

BLOCK = 128  #: tokens and features that share a scale
X, W, DY = 0, 1, 2  #: roles, as operators number them

# Properties of recipes, by their codes, for code that torch.compile traces.
_TYPES = {code: (recipe_of(code).activation.text, recipe_of(code).gradient.text) for code in all_codes()}
_OF_TENSORS = frozenset(code for code in all_codes() if recipe_of(code).activation.granularity == "tensor")
_DELAYED = {
    code: as_recipe("delayed" if recipe_of(code).scales == "pow2" else "delayed:f32").code for code in all_codes()
}


class Operand(NamedTuple):
    """A quantised tensor: codes [rows, columns], or of the transposed copy [columns, rows], and flat scales. A
    transposed copy that ranks have sent may lie in panels, [ranks, columns, rows of each]."""

    codes: torch.Tensor
    scales: torch.Tensor


class Copies(NamedTuple):
    """The outputs of a quantiser. Those that were not asked for are empty."""

    row: Operand
    transposed: Operand
    sums: torch.Tensor  #: fp32, of the columns


def has_tensor_scales(code: int) -> bool:
    """Returns whether a recipe has one scale for each tensor."""
    return code in _OF_TENSORS


def quantize(
    x: torch.Tensor, code: int, role: int, ranks: Ranks | None, row: bool, transposed: bool, sums: bool = False
) -> Copies:
    """Quantises x [..., columns]. ranks: those that have the other parts of it, None if there are none."""
    encode = _encode(x, code, role, ranks) if ranks is not None and has_tensor_scales(code) else None
    made = ops.quantize_operand(x, code, role, row or not transposed, transposed, sums, encode)
    return Copies(Operand(*made[:2]), Operand(*made[2:4]), made[4])


def _encode(x: torch.Tensor, code: int, role: int, ranks: Ranks) -> torch.Tensor:
    """Returns what a tensor of all ranks' maxima is multiplied by. The library divides: compilers may round quotients
    otherwise."""
    amax = largest(ops.operand_amax(x, code, role), ranks)
    state = torch.cat([amax.new_ones(2), amax.expand(2)])[None]
    ops.update_scales(state, 1, _DELAYED[code], 0, 0)
    encode = state[0].narrow(0, 1 if role == DY else 0, 1).clone()  # W has X's type
    if x.dtype == torch.float32:
        return encode
    # An infinite quotient is the largest number of x's dtype.
    return torch.where(encode == torch.finfo(torch.float32).max, torch.finfo(x.dtype).max, encode)


def can_send(rows: Rows) -> bool:
    """Returns whether no block of a transposed copy has tokens of two ranks."""
    return rows.inner % BLOCK == 0 and rows.count > 0


class Sent(NamedTuple):
    """Copies on their way from all ranks."""

    gathering: Gathering  #: of codes, and of scales
    scale: torch.Tensor | None  #: of a whole tensor, which every rank has already
    rows: Rows  #: of each rank
    columns: int
    dtype: torch.dtype  #: of the codes
    transposed: bool


def send(operand: Operand, rows: Rows, columns: int, ranks: Ranks, transposed: bool) -> Sent:
    """Starts to gather a copy."""
    codes, one = operand.codes.view(torch.uint8), operand.scales.numel() == 1
    gathering = start_gather([codes] if one else [codes, operand.scales], ranks)
    return Sent(gathering, operand.scales if one else None, rows, columns, operand.codes.dtype, transposed)


def arrived(sent: Sent, ranks: Ranks) -> Operand:
    """Returns the whole operand, once the gather has ended."""
    outer, inner = sent.rows
    one = sent.scale is not None
    codes, scales = (*wait(sent.gathering), sent.scale) if one else wait(sent.gathering)
    if sent.transposed and outer == 1 < ranks.size:
        codes = codes.view(ranks.size, sent.columns, inner)  # which the product reads as it is
    elif sent.transposed:
        codes = codes.view(ranks.size, sent.columns, outer, inner).movedim(0, 2)
        codes = codes.reshape(sent.columns, outer * ranks.size * inner)
        if not one:  # runs of scales follow each other
            scales = scales.view(ranks.size, outer, inner // BLOCK, -1).movedim(0, 1)
    else:
        codes = codes.view(ranks.size, outer, inner, sent.columns).movedim(0, 1)
        codes = codes.reshape(ranks.size * sent.rows.count, sent.columns)
        if not one:
            scales = scales.view(ranks.size, -1, outer, inner).movedim(0, 2)
    return Operand(codes.view(sent.dtype), scales.reshape(-1))


def weight_gradient(dy: Operand, x: Operand, code: int, weight: torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns dW of transposed copies of all tokens, with the bits of a layer's backward. Only sizes, dtype and device
    of the weight matter."""
    if dy.codes.dim() == 3 or x.codes.dim() == 3:
        made = torch.empty_like(weight)
        of_x, of_dy = _TYPES[code]
        ops.sum_panels_out(*dy, of_dy, *x, of_x, made)
        return made
    n = weight.shape[0]
    like = weight.new_empty(()).expand(tokens, n)
    nothing = like.new_empty(0, dtype=torch.uint8)
    return ops.quantized_backward(nothing, nothing, *dy, like, n, 0, weight, *x, code, False, True)[1]
