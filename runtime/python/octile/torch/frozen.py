"""``FrozenLinear``: a linear layer whose weight is FP8 in memory and is not trained, such as one under an adapter."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from octile._types import DTYPES, ceil_div, refuse
from octile.torch._arguments import FLOATS, FLOATS_TEXT
from octile.torch._operators import ops
from octile.torch.contents import encode, scale_name
from octile.torch.derivatives import is_unusual, refuse_tangents
from octile.torch.functional import as_operands, has_gradients
from octile.torch.layer import check_features
from octile.torch.held_weight import HeldWeight
from octile.torch.recipes import as_recipe

#: Scales of published checkpoints may be any float32 value.
CODE = as_recipe("blockwise:f32").code
_KIND = as_recipe("blockwise:f32").weight
_linear_output = ops.linear_output.default


def product(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns x weight^T + bias of x [..., k], without a gradient, with x in 1x128 blocks. codes: float8_e4m3fn [n, k].
    scales: float32 [ceil(n / 128), ceil(k / 128)]."""
    return ops.linear_output(x, codes, bias, CODE, w_scales=scales)


class _Frozen(torch.autograd.Function):
    """Keeps nothing of x, because the weight has no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight, scales, bias):
        return product(x, weight, scales, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, weight, scales, bias = inputs
        ctx.save_for_backward(weight, scales)
        ctx.bias_dtype = None if bias is None else bias.dtype

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        weight, scales = ctx.saved_tensors
        needs_x, _, _, needs_bias = ctx.needs_input_grad
        nothing = dy.new_empty(0, dtype=torch.uint8)
        needs = needs_x, False, needs_bias
        dx, _, db = ops.linear_backward(
            dy, weight, nothing, nothing, CODE, *needs, w_scales=scales, w_gradient=DTYPES["bf16"]
        )
        return dx if needs_x else None, None, None, db.to(ctx.bias_dtype) if needs_bias else None


_WAY_OUT = "octile.torch.thaw_from_fp8(model) gives it a float dtype again"


def refuse_training() -> NoReturn:
    """Raises the error for a frozen weight that is to have a gradient."""
    raise NotImplementedError(
        "octile: a gradient is required of a frozen weight, which is FP8 codes and is not trained; "
        + _WAY_OUT
    )


def _refusing(kind: type[torch.Tensor]) -> type[torch.Tensor]:
    """Lets tensors of a class refuse to require a gradient."""

    def requires_grad_(self, requires_grad: bool = True):
        if requires_grad:
            refuse_training()
        return self

    kind.requires_grad_ = requires_grad_
    kind.requires_grad = property(lambda self: False, requires_grad_)
    return kind


@_refusing
class FrozenCodes(nn.Parameter):
    """The parameter ``weight`` of a FrozenLinear: codes, a plain tensor that refuses to require a gradient."""

    def __new__(cls, codes: torch.Tensor, requires_grad: bool = False):
        if requires_grad:
            refuse_training()
        return torch.Tensor._make_subclass(cls, codes.detach(), False)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = FrozenCodes(self.data.clone(memory_format=torch.preserve_format))
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return FrozenCodes, (self.data,)


@_refusing
class FrozenWeight(HeldWeight):
    """A weight [n, k] or [experts, n, k] held in FP8 without a master: the value of ``FrozenLinear.weight`` to its
    readers, and the parameter of frozen experts. ``scales`` are those of checkpoints, float32 [..., ceil(n / 128),
    ceil(k / 128)]."""

    refused = f"writes into a frozen weight, which is FP8 codes and is not written; {_WAY_OUT}"

    @classmethod
    def frozen(cls, weight: torch.Tensor) -> FrozenWeight:
        """Returns the parameter of a weight of a float dtype."""
        *experts, n, k = weight.shape
        blocks = *experts, ceil_div(n, 128), ceil_div(k, 128)
        if weight.is_meta:
            codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device="meta")
            scales = torch.empty(blocks, device="meta")
        else:
            codes, scales = encode(weight.detach(), "f32")
        return nn.Parameter(cls(codes, scales, _KIND, weight.dtype), False)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns codes times scales, by default of the weight's dtype."""
        padded = torch.nn.functional.pad(self.scales, (0, -self.scales.shape[-1] % 4), value=1.0)
        return HeldWeight(self.codes, padded, self.kind, self.dtype).dequantize(dtype)

    def entries(self, name: str) -> dict[str, torch.Tensor]:
        """Returns what checkpoints have of a weight of this name: codes and scales."""
        return {name: self.codes, scale_name(name): self.scales}

    @torch.no_grad()
    def load(self, name: str, state: dict[str, torch.Tensor]) -> str | None:
        """Takes its entries out of a state, and writes them. Returns why they do not fit, if they do not."""
        for key, own in self.entries(name).items():
            given = state.pop(key, None)
            if given is None:
                continue
            if own is self.codes and given.dtype != torch.float8_e4m3fn:
                return wrong_codes(key, given)
            if given.shape != own.shape:
                return f"size mismatch for {key}: {tuple(given.shape)} in the checkpoint, {tuple(own.shape)} in the model"
            own.copy_(given)
        return None


def wrong_codes(key: str, given: torch.Tensor) -> str:
    """Returns what is wrong with an entry that is not codes."""
    allowed = "is torch.float8_e4m3fn; load other weights before freeze_to_fp8"
    return str(refuse(f"state_dict[{key!r}].dtype", given.dtype, allowed))


class FrozenLinear(nn.Linear):
    """A linear layer that is not trained, whose weight takes one byte an element and has no other copy. Its parameters
    are those of published block-FP8 checkpoints: ``weight``, float8_e4m3fn [out_features, in_features], and
    ``weight_scale_inv``, float32 [ceil(out_features / 128), ceil(in_features / 128)], which multiplies.

    y = x weight^T + bias for x [..., in_features] has x's dtype, or autocast's; x is quantised in 1x128 blocks. x gets
    a gradient, computed from dy in 1x128 blocks and the weight's transposed codes, which backward makes and frees.
    ``bias`` gets one if it requires it. Setting the weight to require a gradient raises NotImplementedError.
    ``to(dtype)`` changes only the bias. Raises ValueError for other x.

    compute_dtype: the dtype of the weight before freezing. peft makes adapters of this dtype. The constructor's dtype
    sets it, and the bias's dtype. A new layer is zero. in_features and out_features are multiples of 16.
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
        self._freeze(FrozenCodes(codes), nn.Parameter(scales.float(), False), dtype)
        self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype), False) if bias else None

    @property
    def weight(self) -> torch.Tensor:
        """A ``HeldWeight`` of the layer's codes: each operation on it makes a plain tensor of its values, codes times
        scales, in compute_dtype. Writes raise NotImplementedError. The codes themselves are in ``weight.codes``,
        ``state_dict()["weight"]`` and ``parameters()``."""
        codes, scales = self._parameters["weight"], self._parameters["weight_scale_inv"]
        if codes is None or scales is None or hasattr(codes, "to_local"):
            return codes
        return FrozenWeight(codes.detach(), scales.detach(), _KIND, self.compute_dtype)

    def _freeze(self, codes: FrozenCodes, scales: nn.Parameter, compute_dtype: torch.dtype) -> None:
        self.__dict__["compute_dtype"] = compute_dtype
        self._parameters |= {"weight": codes, "weight_scale_inv": scales}

    def reset_parameters(self) -> None:
        """Makes the layer zero."""
        with torch.no_grad():
            self._parameters["weight"].view(torch.uint8).zero_()
            self.weight_scale_inv.fill_(1.0)
            if self.bias is not None:
                self.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x weight^T + bias: [..., out_features]."""
        codes = self._parameters["weight"]
        if isinstance(x, torch.Tensor) and not (torch.is_grad_enabled() or codes.requires_grad or is_unusual()):
            scales, bias = self._parameters["weight_scale_inv"], self._parameters["bias"]
            try:
                return _linear_output(x, codes, bias, CODE, None, None, None, None, scales)
            except (RuntimeError, TypeError, ValueError, AttributeError):
                pass  # what follows says why, or takes these tensors
        x, bias = as_operands(x, None, self.bias)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise refuse("x.shape", tuple(x.shape), f"is (..., {self.in_features})")
        weight, scales = self._parameters["weight"], self._parameters["weight_scale_inv"]
        if weight.requires_grad:  # of a parameter that FSDP2 or a state_dict has put here
            refuse_training()
        refuse_tangents(x, bias)
        if has_gradients(x, weight, bias):
            return _Frozen.apply(x, weight, scales, bias)
        return product(x, weight, scales, bias)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the weight as ``dtype`` (float32, bfloat16 or float16, by default compute_dtype): codes times
        scales."""
        dtype = self.compute_dtype if dtype is None else dtype
        if dtype not in FLOATS:
            raise refuse("dtype", dtype, FLOATS_TEXT)
        codes, scales = self._parameters["weight"].detach(), self._parameters["weight_scale_inv"].detach()
        return FrozenWeight(codes, scales, _KIND, dtype).dequantize()

    def _apply(self, fn, recurse=True):
        stay = id(self._parameters["weight"]), id(self._parameters["weight_scale_inv"])

        def moved(tensor):
            made = fn(tensor)
            return tensor.to(made.device) if id(tensor) in stay and made.dtype != tensor.dtype else made

        super()._apply(moved, recurse)
        self._guard()
        return self

    def _guard(self) -> None:
        """Lets codes that PyTorch has put in the place of others refuse a gradient too."""
        if type(codes := self._parameters["weight"]) is nn.Parameter:
            self._parameters["weight"] = FrozenCodes(codes)

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        weight, scales = (state_dict.get(prefix + name) for name in ("weight", "weight_scale_inv"))
        if weight is not None and weight.dtype != torch.float8_e4m3fn:
            errors.append(wrong_codes(prefix + "weight", weight))
            return
        if scales is not None:
            state_dict[prefix + "weight_scale_inv"] = scales.float()
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        self._guard()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, frozen in FP8"
