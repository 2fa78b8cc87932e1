"""``Linear``: ``torch.nn.Linear`` computed in FP8, and ``Experts``: the same for the experts of a mixture."""

from __future__ import annotations

import torch
from torch import nn

from octile._types import is_integer, refuse, wrong_type
from octile.torch.functional import linear_of, plain_linear
from octile.torch.grouped import check_recipe, experts_of, plain_experts
from octile.torch.layer import MULTIPLE, Layer, check_features
from octile.torch.recipes import Recipe, as_recipe

NEVER = 2**62  # tokens that no call has


class Linear(Layer, nn.Linear):
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
        if not isinstance(linear, nn.Linear):
            raise wrong_type("linear", linear, "torch.nn.Linear")
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
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if not is_integer(value):
                raise refuse(name, value, "are integers")
        aligned = in_features % MULTIPLE == 0 and out_features % MULTIPLE == 0 and in_features and out_features
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if unaligned == "error" and (value % MULTIPLE or value == 0):
                raise refuse(name, value, "are multiples of 16 above 0, or others with unaligned='bf16'")
        self._set_up(recipe, bool(aligned))
        self.__dict__["least_tokens"] = (0, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x weight^T + bias: [..., out_features]."""
        watch = self._watch
        if self._is_plain() or self._has_too_few(x):
            if watch is not None:
                watch.was_plain = True
            return plain_linear(x, self.weight, self.bias)
        code, state = self._call_state(x)
        if watch is not None:
            return watch.linear(x, self.weight, self.bias, code, state)
        return linear_of(x, self.weight, self.bias, code, state)

    def _has_too_few(self, x: torch.Tensor) -> bool:
        least = self.least_tokens[0 if self.training else 1]
        return least > 0 and x.numel() < least * self.in_features

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self._recipe_text()}"


class Experts(Layer):
    """The linear layers of ``experts`` experts, computed in FP8: ``octile.torch.experts`` as a module.

    Its only state is ``weight`` [experts, out_features, in_features], initialised as that of ``nn.Linear``, without
    bias. What is said of ``Linear`` holds of ``fp8``, ``set_fp8``, ``Schedule``, ``sentry``, FSDP2 and checkpoints.

    recipe: those of ``octile.torch.experts``, and "delayed". With it every expert has a scale of its own for its
    weight, for its tokens and for their gradients, as if it were a layer of its own, and a history for each: tokens of
    experts are routed by what they are, and so have different ranges. A step in which an expert has no tokens counts
    for it as one with the maximum 0: its scales stay if all that it remembers are such steps. Scales begin at 1.
    """

    def __init__(
        self,
        experts: int,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "blockwise",
    ) -> None:
        if not is_integer(experts, 1):
            raise refuse("experts", experts, "are 1 and more")
        check_features(in_features=in_features, out_features=out_features)
        recipe = as_recipe(recipe)
        check_recipe(recipe.name, weight_gradient=False, stateful=True)
        self._set_up(recipe, True, experts)
        super().__init__()
        self.experts, self.in_features, self.out_features = experts, in_features, out_features
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Returns y [tokens, out_features] of x [tokens, in_features], by the groups of ``offsets``, which are those of
        ``octile.torch.experts``."""
        watch = self._watch
        if self._is_plain():
            if watch is not None:
                watch.was_plain = True
            return plain_experts(x, self.weight, offsets)
        check_recipe(self.recipe.name, torch.is_grad_enabled() and self.weight.requires_grad, stateful=True)
        code, state = self._call_state(x)
        if watch is not None:
            return watch.experts(x, self.weight, offsets, code, state)
        return experts_of(x, self.weight, offsets, code, state)

    def extra_repr(self) -> str:
        sizes = f"experts={self.experts}, in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, {self._recipe_text()}"
