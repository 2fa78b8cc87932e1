"""``FrozenLinear``: a linear layer whose weight is FP8 in memory and is not trained, such as one under an adapter."""

from __future__ import annotations

import torch
from torch import nn

from octile._types import TensorType, ceil_div, refuse
from octile.torch._arguments import FLOATS, FLOATS_TEXT
from octile.torch._operators import ops
from octile.torch.functional import Quantized, as_operands, dequantize, gemm, has_gradients, quantize, transpose
from octile.torch.layer import check_features

_KIND = TensorType.of("e4m3", "128x128", "f32")


def _product(x, weight, scales, bias):
    rows = x.reshape(-1, x.shape[-1])
    return ops.block_fp8_linear(rows, weight, scales, bias, None).view(*x.shape[:-1], weight.shape[0])


def _as_quantized(weight: torch.Tensor, scales: torch.Tensor) -> Quantized:
    """Returns a weight with its scales as the library lays them out, in rows padded to four."""
    padded = torch.nn.functional.pad(scales, (0, -scales.shape[1] % 4), value=1.0)
    return Quantized(weight, padded, _KIND, tuple(weight.shape))


class _Frozen(torch.autograd.Function):
    """Keeps nothing of x, because the weight has no gradient."""

    @staticmethod
    def forward(ctx, x, weight, scales, bias):
        ctx.save_for_backward(weight, scales)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _product(x, weight, scales, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        weight, scales = ctx.saved_tensors
        needs_x, _, _, needs_bias = ctx.needs_input_grad
        rows, dx, db = dy.reshape(-1, dy.shape[-1]), None, None
        if needs_x:
            # The transposed copy has the weight's own codes. To keep it would double the layer's memory.
            transposed = transpose(_as_quantized(weight, scales))
            dx = gemm(quantize(rows, scales="f32"), transposed, dy.dtype).view(*dy.shape[:-1], weight.shape[1])
        if needs_bias:
            db = rows.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return dx, None, None, db


class FrozenLinear(nn.Linear):
    """A linear layer that is not trained: ``weight`` is float8_e4m3fn [out_features, in_features], one byte an element,
    and ``weight_scale_inv`` float32 [ceil(out_features / 128), ceil(in_features / 128)], which multiplies, under the
    names of published block-FP8 checkpoints. It keeps no other copy of the weight.

    y = x weight^T + bias of x [..., in_features] has x's dtype, or autocast's; x is quantised in 1x128 blocks. x gets
    its gradient, of dy in 1x128 blocks and the weight's transposed codes, which backward makes and frees. ``bias`` gets
    one if it requires it, the weight none. ``to(dtype)`` changes the bias alone. Raises ValueError for other x.

    compute_dtype: the dtype of the weight that it was made of. peft makes adapters of this dtype. The constructor's
    dtype is that, and the bias's. A new layer is zero. in_features and out_features are multiples of 16.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_features(in_features=in_features, out_features=out_features)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in FLOATS:
            raise refuse("dtype", dtype, FLOATS_TEXT)
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        codes = torch.zeros(out_features, in_features, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        scales = torch.ones(ceil_div(out_features, 128), ceil_div(in_features, 128), device=device)
        self._freeze(nn.Parameter(codes, False), nn.Parameter(scales.float(), False), dtype)
        self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype), False) if bias else None

    def _freeze(self, codes: nn.Parameter, scales: nn.Parameter, compute_dtype: torch.dtype) -> None:
        self.__dict__["compute_dtype"] = compute_dtype
        self._parameters |= {"weight": codes, "weight_scale_inv": scales}

    def reset_parameters(self) -> None:
        """Makes the layer zero."""
        with torch.no_grad():
            self.weight.view(torch.uint8).zero_()
            self.weight_scale_inv.fill_(1.0)
            if self.bias is not None:
                self.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x weight^T + bias: [..., out_features]."""
        x, bias = as_operands(x, None, self.bias)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise refuse("x.shape", tuple(x.shape), f"is (..., {self.in_features})")
        compute = _Frozen.apply if has_gradients(x, self.weight, bias) else _product
        return compute(x, self.weight, self.weight_scale_inv, bias)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the weight as ``dtype`` (float32, bfloat16 or float16, by default compute_dtype): codes times
        scales."""
        q = _as_quantized(self.weight.detach(), self.weight_scale_inv.detach())
        return dequantize(q, self.compute_dtype if dtype is None else dtype)

    def _apply(self, fn, recurse=True):
        stay = id(self.weight), id(self.weight_scale_inv)

        def moved(tensor):
            made = fn(tensor)
            return tensor.to(made.device) if id(tensor) in stay and made.dtype != tensor.dtype else made

        return super()._apply(moved, recurse)

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        weight, scales = (state_dict.get(prefix + name) for name in ("weight", "weight_scale_inv"))
        if weight is not None and weight.dtype != torch.float8_e4m3fn:
            allowed = "is torch.float8_e4m3fn; load other weights before freeze_to_fp8"
            errors.append(str(refuse(f"state_dict[{prefix + 'weight'!r}].dtype", weight.dtype, allowed)))
            return
        if scales is not None:
            state_dict[prefix + "weight_scale_inv"] = scales.float()
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, frozen in FP8"
