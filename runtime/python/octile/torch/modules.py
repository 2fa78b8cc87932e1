"""``Linear``: ``torch.nn.Linear`` computed in FP8."""

from __future__ import annotations

import torch
from torch import nn

from octile._types import refuse
from octile.torch.functional import linear_of
from octile.torch.recipes import Recipe, as_recipe
from octile.torch.scaling import Scaling
from octile.torch.weights import replaced, weights_changed

MULTIPLE = 16  # of in_features and out_features
NEVER = 2**62  # tokens that no call has


class Linear(nn.Linear):
    """A linear layer whose three GEMMs (output, input gradients, weight gradients) take FP8 operands.

    Input [..., in_features], output [..., out_features] of the input's dtype, or of autocast's. ``weight`` and
    ``bias`` are its only state, in bfloat16, float16 or float32, so checkpoints of ``nn.Linear`` load, and the other
    way round. The weight is quantised once between two changes of its contents; see ``octile.torch.weights.keep``.
    Between forward and backward the layer keeps the transposed FP8 copy of its input and nothing else.

    ``fp8`` is True; while it is False the layer computes as ``nn.Linear`` does, in the input's dtype. ``set_fp8`` sets
    it for all layers of a model.

    ``least_tokens`` is (0, 0), or what ``convert`` found: calls with fewer tokens, in ``train()`` and in ``eval()``
    mode, compute as ``nn.Linear`` does, because FP8 would be slower.

    A layer of recipe "delayed" also keeps scales and maxima, in no checkpoint: a model that loads one begins with the
    recipe's warm-up, so its first steps scale by the tensors' own maxima. See ``octile.torch.update_scales``.

    in_features and out_features are multiples of 16. Of others, ``unaligned="bf16"`` makes a layer that computes as
    ``nn.Linear`` does, and the default ``"error"`` raises ValueError.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
        unaligned: str = "error",
    ) -> None:
        self._set_recipe(as_recipe(recipe), in_features, out_features, unaligned)
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        recipe: Recipe | str = "blockwise",
        unaligned: str = "error",
        least_tokens: tuple[int, int] = (0, 0),
    ) -> Linear:
        """Returns a layer that shares the parameters of ``linear``."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.in_features, made.out_features = linear.in_features, linear.out_features
        made._set_recipe(as_recipe(recipe), linear.in_features, linear.out_features, unaligned)
        made.register_parameter("weight", linear.weight)
        made.register_parameter("bias", linear.bias)
        made.training, made.least_tokens = linear.training, least_tokens
        return made

    def _set_recipe(self, recipe: Recipe, in_features: int, out_features: int, unaligned: str) -> None:
        if unaligned not in ("error", "bf16"):
            raise refuse("unaligned", unaligned, "are 'error' and 'bf16'")
        aligned = in_features % MULTIPLE == 0 and out_features % MULTIPLE == 0 and in_features and out_features
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if unaligned == "error" and (value % MULTIPLE or value == 0):
                raise refuse(name, value, "are multiples of 16 above 0, or others with unaligned='bf16'")
        # Not by nn.Module's __setattr__, which needs its __init__ to have run.
        self.__dict__["recipe"] = recipe
        self.__dict__["fp8"] = True
        self.__dict__["least_tokens"] = (0, 0)
        self.__dict__["_code"] = recipe.code if aligned else None
        self.__dict__["_scaling"] = Scaling(recipe) if aligned and recipe.is_delayed else None
        self.__dict__["_watch"] = None  # set by a Sentry

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x weight^T + bias: [..., out_features]."""
        watch = self._watch
        plain = self._code is None or not self.fp8 or self._has_too_few(x) or (watch is not None and watch.paused)
        if plain:
            if watch is not None:
                watch.was_plain = True
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return nn.functional.linear(x, self.weight.to(x.dtype), bias)
        code, scaling, state = self._code, self._scaling, None
        if scaling is not None:
            scaling.check_capture(x.device)
            code, state = scaling.code, scaling.on(x.device)
        if watch is not None:
            return watch.linear(x, self.weight, self.bias, code, state)
        return linear_of(x, self.weight, self.bias, code, state)

    def _has_too_few(self, x: torch.Tensor) -> bool:
        least = self.least_tokens[0 if self.training else 1]
        return least > 0 and x.numel() < least * self.in_features

    def extra_repr(self) -> str:
        scales = "" if self.recipe.scales == "pow2" else f", scales={self.recipe.scales}"
        return f"{super().extra_repr()}, recipe={self.recipe.name if self._code is not None else 'none'}{scales}"

    # ---- places where the weight becomes another tensor, or moves

    def __setattr__(self, name: str, value: object) -> None:
        # FSDP2 replaces parameters by register_parameter only in modules with a __setattr__ of their own.
        super().__setattr__(name, value)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        before = self._parameters.get(name)
        super().register_parameter(name, param)
        if name == "weight" and param is not None:
            self._weight_is(param, before)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        if self.weight is not None:
            self._weight_is(self.weight)
        return self

    def _load_from_state_dict(self, *arguments) -> None:
        super()._load_from_state_dict(*arguments)
        weights_changed()

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_watch": None}

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self._weight_is(self.weight)

    def _weight_is(self, weight: nn.Parameter, before: nn.Parameter | None = None) -> None:
        replaced(before, weight)
        if self._scaling is not None:
            self._scaling.place(weight.device)

    def train(self, mode: bool = True):
        # Averaged weights are swapped in and out around evaluation, often through .data.
        if mode != self.training:
            weights_changed()
        return super().train(mode)
