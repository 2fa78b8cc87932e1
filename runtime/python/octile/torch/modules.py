"""``Linear``: ``torch.nn.Linear`` computed in FP8, and ``Experts``: the same for the experts of a mixture."""

from __future__ import annotations

import copy
import functools
from types import MethodType

import torch
from torch import nn
from torch.autograd import forward_ad
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import _WrappedHook

from octile._types import is_integer, refuse, wrong_type
from octile.torch._arguments import FLOATS, check_tensor
from octile.torch._operators import ops
from octile.torch.calls import FEW, FP8
from octile.torch.calls import NEVER as NEVER
from octile.torch.functional import linear_of, plain_linear
from octile.torch.grouped import as_rows, check_recipe, experts_of, plain_experts
from octile.torch.layer import MULTIPLE, Layer, WeightOwner, check_features
from octile.torch.held_weight import HeldWeight
from octile.torch.recipes import Recipe, as_recipe
from octile.torch.weights import follow, forget

_linear_output = ops.linear_output.default
_TABLES = frozenset(name for name, value in nn.Module().__dict__.items() if isinstance(value, dict | set))


def why_not_taken(linear: nn.Linear) -> str | None:
    """Returns why a ``Linear`` in the place of ``linear`` would compute something else, or None. Functions that PyTorch
    calls around forward, such as hooks, do not count."""
    if type(linear).forward not in (nn.Linear.forward, Linear.forward):
        return f"is a {type(linear).__name__}, whose forward may differ"
    if not has_forward_of_class(linear):
        return "has a forward of its own"
    for name in ("weight", "bias"):
        if name not in linear._parameters:
            return f"computes its {name} from other tensors"
        parameter = linear._parameters[name]
        if parameter is None:
            if name == "weight":
                return "has no weight"
            continue
        if (reason := why_no_operand(name, parameter)) is not None:
            return reason
        sizes = (linear.out_features, linear.in_features)[: 2 if name == "weight" else 1]
        if parameter.shape != sizes:
            return f"its {name} is {list(parameter.shape)}, not {list(sizes)}"
    if not isinstance(linear, Linear):
        for names in (linear.__dict__, linear._parameters, linear._buffers, linear._modules):
            for name in sorted(_own_names().intersection(names)):
                return f"has an attribute {name!r}, which octile.torch.Linear has too"
    return None


def why_no_operand(name: str, parameter: nn.Parameter) -> str | None:
    """Returns why layers do not compute with a parameter, or None."""
    if hasattr(parameter, "to_local"):
        return f"its {name} is a DTensor: convert goes before fully_shard and parallelize_module"
    if type(parameter.data) not in (torch.Tensor, FakeTensor, HeldWeight):
        return f"its {name} is a {type(parameter.data).__name__}"
    if parameter.dtype not in FLOATS:
        return f"its {name} is of type {str(parameter.dtype).removeprefix('torch.')}"
    if parameter.device.type not in ("cpu", "cuda", "meta"):
        return f"its {name} is on {parameter.device.type}"
    return None


@functools.cache
def _own_names() -> frozenset[str]:
    """Returns the attributes that a ``Linear`` has and an ``nn.Linear`` has not."""
    octile_linear, torch_linear = (kind(MULTIPLE, MULTIPLE, device="meta") for kind in (Linear, nn.Linear))
    return frozenset(dir(octile_linear)).difference(dir(torch_linear))


@functools.cache
def own_state() -> frozenset[str]:
    """Returns the attributes of an instance of ``Linear`` that one of ``nn.Linear`` has not."""
    octile_linear, torch_linear = (vars(kind(MULTIPLE, MULTIPLE, device="meta")) for kind in (Linear, nn.Linear))
    return frozenset(octile_linear).difference(torch_linear)


def _table_of(made: nn.Module, table: dict | set) -> dict | set:
    """Returns a copy of the attributes that PyTorch registers in a module. Hooks that are bound to the module are bound
    to ``made``."""
    table = copy.copy(table)
    for key, hook in table.items() if isinstance(table, dict) else ():
        if isinstance(hook, _WrappedHook) and hook.with_module:
            table[key] = _WrappedHook(hook.hook, made)
    return table


def _is_forward_of_class(forward: object, linear: nn.Module) -> bool:
    return isinstance(forward, MethodType) and forward.__self__ is linear and forward.__func__ is type(linear).forward


def is_called_by_accelerate(linear: nn.Module) -> bool:
    """Returns whether accelerate's hook is around the forward of the class, which it calls as ``_old_forward``."""
    forward = linear.__dict__.get("forward")
    return (
        isinstance(forward, functools.partial)
        and getattr(forward.func, "__module__", None) == "accelerate.hooks"
        and "_hf_hook" in linear.__dict__
        and _is_forward_of_class(linear.__dict__.get("_old_forward"), linear)
    )


def has_forward_of_class(linear: nn.Module) -> bool:
    forward = linear.__dict__.get("forward")
    return forward is None or _is_forward_of_class(forward, linear) or is_called_by_accelerate(linear)


class Linear(WeightOwner, Layer, nn.Linear):
    """A linear layer whose three GEMMs (output, input gradients, weight gradients) take FP8 operands.

    Input [..., in_features], output [..., out_features] of the input's dtype, or of autocast's. ``weight`` and ``bias``
    are its only state, in bfloat16, float16 or float32, so checkpoints of ``nn.Linear`` load, and the other way round.
    The weight is quantised once between two changes of its contents; see ``octile.torch.weights.keep``. Between forward
    and backward the layer keeps only the transposed FP8 copy of its input, and shares it with the next layers that are
    called with the same tensor. It keeps nothing if the input is the result of a norm that ``convert`` recognised.

    ``fp8`` is True; while it is False the layer computes as ``nn.Linear`` does, in the input's dtype. ``set_fp8`` sets
    it for all layers of a model.

    ``least_tokens`` is (0, 0, 0), or set by ``convert``: calls with fewer tokens compute as ``nn.Linear`` does, because
    FP8 would be slower. The numbers are for ``train()`` mode, for ``eval()`` mode with a trusted weight
    (``trust_weights``), and for ``eval()`` mode with another weight.

    ``keeps_input`` is False, or set by ``convert``: True keeps the input itself for backward, which quantises it again,
    because another operation keeps that tensor anyway. Layers of recipe "delayed", and those that a sentry watches,
    keep the FP8 copy.

    A layer of recipe "delayed" also keeps scales and maxima of x and dy, which checkpoints do not contain. With another
    weight it restarts the recipe's warm-up, so its first steps scale by the tensors' own maxima, as in ``eval()`` mode.
    See ``octile.torch.update_scales`` and ``octile.torch.scales_state_dict``.

    in_features and out_features are multiples of 16. With other sizes, ``unaligned="bf16"`` makes a layer that computes
    as ``nn.Linear`` does, and the default ``"error"`` raises ValueError.
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
        least_tokens: tuple[int, int, int] = (0, 0, 0),
    ) -> Linear:
        """Returns a new layer with the parameters, buffers, hooks and attributes of ``linear``. Raises ValueError if
        ``linear`` has its own forward or computes its weight, as parametrizations do."""
        if not isinstance(linear, nn.Linear):
            raise wrong_type("linear", linear, "torch.nn.Linear")
        reason = why_not_taken(linear)
        if reason is None and is_called_by_accelerate(linear):
            reason = "is called by a hook of accelerate"
        if reason is not None:
            raise refuse("linear", type(linear).__name__, f"is a layer that computes as torch.nn.Linear; this {reason}")
        if not (isinstance(least_tokens, tuple) and len(least_tokens) == 3 and all(map(is_integer, least_tokens))):
            allowed = (
                "are three integers from 0 on: in train() mode, and in eval() mode with weights trusted and compared"
            )
            raise refuse("least_tokens", least_tokens, allowed)
        made = cls.__new__(cls)
        for name, value in linear.__dict__.items():
            # A later registration is in one of the two.
            made.__dict__[name] = _table_of(made, value) if name in _TABLES else value
        for name in ("forward", "_compiled_call_impl"):  # bound to ``linear``
            made.__dict__.pop(name, None)
        made._begin(as_recipe(recipe), unaligned, least_tokens)
        return made

    @classmethod
    def _take_over(cls, linear: nn.Linear, recipe: Recipe, least_tokens: tuple[int, int, int]) -> None:
        """Makes ``linear``, for which ``why_not_taken`` has no reason, a layer of this class and recipe. Whoever holds
        it has the FP8 layer then."""
        if isinstance(linear, cls):
            forget(linear.weight)
            linear._set_up_again(recipe)
            linear.__dict__["least_tokens"] = least_tokens
            linear._weight_is(linear.weight)
            return
        if is_called_by_accelerate(linear):
            linear._old_forward = MethodType(cls.forward, linear)
        else:
            linear.__dict__.pop("forward", None)
        linear.__class__ = cls
        linear._begin(recipe, "error", least_tokens)
        linear.__dict__["_by_convert"] = True

    def _begin(self, recipe: Recipe, unaligned: str, least_tokens: tuple[int, int, int]) -> None:
        self._set_recipe(recipe, self.in_features, self.out_features, unaligned)
        self.__dict__["least_tokens"] = least_tokens
        self._weight_is(self.weight)

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
        self.__dict__["least_tokens"] = (0, 0, 0)
        self.__dict__["keeps_input"] = False

    def computed_shape(self) -> tuple[int, int]:
        """Returns the sizes of the weight that this rank's calls compute with, however ranks store it."""
        return self.out_features, self.in_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x weight^T + bias: [..., out_features]."""
        if not torch.is_grad_enabled() and (y := self._usual_output(x)) is not None:
            return y
        watch = self._watch
        if self._is_plain() or self._has_too_few(x):
            self._note_plain()
            return plain_linear(x, self.weight, self.bias)
        code, state = self._call_state(x)
        if watch is not None:
            return watch.linear(x, self.weight, self.bias, code, state, self.recipe.plain)
        plain = self.recipe.plain
        return linear_of(x, self.weight, self.bias, code, state, keeps_x=self.keeps_input, plain=plain)

    def _usual_output(self, x: torch.Tensor) -> torch.Tensor | None:
        """Returns the result of a call without gradients in which nothing is unusual, in as little of the host's time as
        it takes, or None. A call that the operator refuses goes the long way, which says why."""
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        # The conditions of is_unusual() stand here again, because a call of it takes the host longer.
        if (
            torch.compiler.is_compiling()
            or type(weight) is not nn.Parameter
            or not isinstance(x, torch.Tensor)
            or self._watch is not None
            or self._scaling is not None
            or self._code is None
            or not self.fp8
            or (bias is not None and bias.dtype is torch.float16)
            or torch._C._is_any_autocast_enabled()
            or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0
        ):
            return None
        follow(weight)
        least = self.least_tokens[0 if self.training else 1 if self._rule.trusted else 2]
        try:
            if least > 0 and x.numel() < least * self.in_features:
                y, kind = torch.nn.functional.linear(x, weight, bias), FEW
            else:
                y, kind = _linear_output(x, weight, bias, self._code), FP8
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return None
        self._calls[kind] += 1
        return y

    def least_tokens_now(self) -> int:
        """Returns the least number of tokens of a call in FP8."""
        is_trusted = self._rule.trusted or isinstance(self.weight, HeldWeight)
        return self.least_tokens[0 if self.training else 1 if is_trusted else 2]

    def least_now(self) -> int:
        return self.least_tokens_now()

    def _has_too_few(self, x: torch.Tensor) -> bool:
        least = self.least_tokens_now()
        if least == 0:
            return False
        check_tensor(x, "x")
        return x.numel() < least * self.in_features

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self._recipe_text()}"


class Experts(WeightOwner, Layer):
    """The linear layers of ``experts`` experts, computed in FP8: ``octile.torch.experts`` as a module.

    Its only state is ``weight`` [experts, out_features, in_features], initialised as that of ``nn.Linear``, without
    bias. ``fp8``, ``set_fp8``, ``Schedule``, ``sentry``, FSDP2 and checkpoints work as for ``Linear``.

    recipe: those of ``octile.torch.experts``, and "delayed". With "delayed" every expert has its own scales and
    histories for its tokens and their gradients, because tokens are routed by their contents and so have different
    ranges. A step in which an expert has no tokens records the maximum 0; if its whole history is such steps, its
    scales stay. Scales begin at 1.
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
        check_recipe(recipe, weight_gradient=False, stateful=True)
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
        """Returns y [tokens, out_features] for x [tokens, in_features], with groups given by ``offsets`` as in
        ``octile.torch.experts``."""
        return multiply_groups(self, x, self.weight, offsets)

    def extra_repr(self) -> str:
        sizes = f"experts={self.experts}, in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, {self._recipe_text()}"


def multiply_groups(
    layer: Layer, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, plain: bool = False
) -> torch.Tensor:
    """Returns what ``experts`` does, as a layer computes now: by its recipe, or without FP8, and watched by its sentry.
    weight: the layer's. plain: this call is without FP8 in any case."""
    watch = layer._watch
    if plain or layer._is_plain():
        layer._note_plain()
        return plain_experts(x, as_rows(weight, layer.transposed), offsets)
    check_recipe(layer.recipe, torch.is_grad_enabled() and weight.requires_grad, stateful=True)
    code, state = layer._call_state(x)
    if watch is not None:
        return watch.experts(x, weight, offsets, code, state, layer.transposed, layer.recipe.plain)
    return experts_of(x, weight, offsets, code, state, transposed=layer.transposed, plain=layer.recipe.plain)
