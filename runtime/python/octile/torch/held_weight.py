"""``HeldWeight``: a weight that is FP8 codes and scales in memory, and a tensor of a float type to PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from octile._types import DTYPES, TensorType, refuse
from octile.torch._operators import ops
from octile.torch.recipes import Recipe, as_recipe, recipe_of

#: Recipes of which W's transposed copy has W's own codes.
RECIPES = ("blockwise", "blockwise:f32", "blockwise_hybrid", "blockwise_hybrid:f32", "tensorwise", "tensorwise:f32")
_CODES = {as_recipe(name).weight: as_recipe(name).code for name in RECIPES}
_GRADIENTS = {torch.bfloat16: DTYPES["bf16"], torch.float16: DTYPES["fp16"], torch.float32: DTYPES["fp32"]}
_OWN = frozenset(("codes", "scales", "kind", "master", "sharing", "_is_param"))
#: Elements whose masters are rounded together before they are quantised.
_TOGETHER = 1 << 26


def may_be_held(recipe: Recipe) -> bool:
    """Returns whether weights of this recipe may be held in FP8: their transposed codes are their own, and nothing but
    the weight decides its scales."""
    return recipe.weight in _CODES and not recipe.is_delayed


class Sharing:
    """The notes of calls about a weight, which has no copies to keep."""

    shares_input = False  # other weights have the same input


class HeldWeight(torch.Tensor):
    """A weight [n, k] or [experts, n, k] that is held in FP8: ``codes``, float8_e4m3fn of its shape, and ``scales``,
    float32 of ``kind`` in the library's layout, for 3 dimensions one for each expert. ``master`` is the float32 tensor
    that it is trained in, or None for a copy that somebody else trains.

    Its values, for everything but the products of FP8 layers, are the master rounded to the weight's dtype, or codes
    times scales without a master. So ``weight.clone()``, ``print(weight)`` and ``weight.norm()`` are those of an
    ordinary parameter, each time in a new plain tensor. The codes are always those of these values.

    ``copy_`` writes the master and quantises, unless the weight has these values already. All else that would write into the weight, or into a view of it, raises
    NotImplementedError. Gradients and results of operations are plain tensors; views are ``HeldView``, and ``detach()``
    and ``data`` are the same weight.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    kind: TensorType
    master: torch.Tensor | None
    sharing: Sharing
    #: what an error says of a write
    refused = (
        "writes into a weight that is held in FP8; allowed are copy_() of a whole weight, load_state_dict(), and steps "
        "of an optimizer that octile.torch.primary_fp8 was given"
    )

    @staticmethod
    def __new__(cls, codes, scales, kind, dtype, master=None):
        made = torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=dtype, device=codes.device, strides=codes.stride()
        )
        made.codes, made.scales, made.kind, made.master = codes, scales, kind, master
        made.sharing = Sharing()
        return made

    @classmethod
    def of(cls, master: torch.Tensor, kind: TensorType, dtype: torch.dtype) -> HeldWeight:
        """Returns the weight of this dtype whose values are those of a float32 master, which it keeps."""
        *experts, n, k = master.shape
        codes = torch.empty(master.shape, dtype=torch.float8_e4m3fn, device=master.device)
        scales = torch.empty((*experts, *kind.scale_shape(n, k)), dtype=torch.float32, device=master.device)
        made = cls(codes, scales, kind, dtype, master)
        quantize_again([made])
        return made

    def values(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns the weight's values in a new plain tensor, by default of its own dtype. Other dtypes are made from
        the master itself."""
        dtype = self.dtype if dtype is None else dtype
        if self.master is not None:
            return self.master.to(dtype, copy=True)
        return self.dequantize(dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns codes times scales, by default of the weight's dtype."""
        dtype = self.dtype if dtype is None else dtype
        *_, n, k = self.shape
        codes, scales = self.codes.view(-1, n, k), self.scales.view(-1, *self.kind.scale_shape(n, k))
        word = _GRADIENTS[dtype]
        parts = [ops.dequantize(c, s, self.kind.text, k, word) for c, s in zip(codes, scales, strict=True)]
        return torch.stack(parts).view(self.shape)

    def entries(self, name: str) -> dict[str, torch.Tensor]:
        """Returns what checkpoints have of a weight of this name: its values as ``primary_fp8`` was told."""
        return {name: self.values(getattr(self, "octile_checkpoint", None))}

    def is_of(self, values: torch.Tensor) -> bool:
        """Returns whether these are the weight's values, bit for bit, of a dtype of 16 bits. The host waits; while
        PyTorch traces or captures, the answer is False."""
        if type(values) is not torch.Tensor or values.is_meta or torch.compiler.is_compiling():
            return False
        if values.shape != self.shape or values.dtype not in (torch.bfloat16, torch.float16):
            return False
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        own = self.values(values.dtype)
        return own.view(torch.int16).equal(values.detach().to(own.device).contiguous().view(torch.int16))

    # ---- what PyTorch asks

    def __tensor_flatten__(self):
        names = ["codes", "scales"] + ([] if self.master is None else ["master"])
        return names, (self.kind, self.dtype)

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, outer_size, outer_stride):
        return cls(inner["codes"], inner["scales"], *meta, inner.get("master"))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _dispatched(function, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def data(self) -> HeldWeight:
        return self.detach()

    @data.setter
    def data(self, _) -> None:
        raise NotImplementedError(f"octile: an assignment to weight.data {self.refused}")

    def __setitem__(self, key, value) -> None:
        raise NotImplementedError(f"octile: an assignment to elements {self.refused}")

    def __repr__(self, *, tensor_contents=None) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"HeldWeight({self.detach().values()!r}, codes={self.kind.text}{grad})"

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            parts = [None if part is None else part.clone() for part in (self.codes, self.scales, self.master)]
            memo[id(self)] = made = self._like(*parts)
            made.__dict__.update(copy.deepcopy(self.attributes(), memo))
            if self.grad is not None:
                made.grad = self.grad.clone()
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        # pickle takes no float8
        state = self.codes.view(torch.uint8), self.scales, self.kind, self.dtype, self.master
        return _rebuilt, (type(self), *state, isinstance(self, nn.Parameter), self.requires_grad, self.attributes())

    # ---- moving

    def attributes(self) -> dict[str, Any]:
        """Returns what others have put on the weight, such as ``main_grad``."""
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def _like(self, codes, scales, master, dtype: torch.dtype | None = None) -> HeldWeight:
        """Returns such a weight, a parameter if this is one, with the same attributes."""
        made = type(self)(codes, scales, self.kind, dtype or self.dtype, master)
        return _parameter(made, isinstance(self, nn.Parameter), self.requires_grad, self.attributes())

    def move(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Does to a parameter what ``function`` does to others, as ``nn.Module._apply`` has it: another device, or
        another dtype. In another dtype they are the weight's values, and the codes are made anew; the master stays."""
        with torch.no_grad():
            sample = function(torch.empty(0, dtype=self.dtype, device=self.device))
            gradient = None if self.grad is None else function(self.grad)
        device, dtype = sample.device, sample.dtype
        if (device, dtype) == (self.device, self.dtype):
            return
        parts = [None if part is None else part.to(device) for part in (self.codes, self.scales, self.master)]
        made = self._like(*parts, dtype=dtype)
        if dtype != self.dtype and self.master is not None and device.type != "meta":
            quantize_again([made])
        before, self.grad = self.grad, None
        try:
            torch.utils.swap_tensors(self, made)
        except RuntimeError as error:
            self.grad = before
            allowed = "is one that no graph of autograd or of torch.compile holds, if it is to be moved or cast"
            raise refuse("a weight that is held in FP8", f"in use ({error})", allowed) from None
        self.grad = gradient


class HeldView(torch.Tensor):
    """A view of a ``HeldWeight``: its values as they were, which cannot be written, because the weight would not be."""

    @staticmethod
    def __new__(cls, plain, refused=HeldWeight.refused):
        made = torch.Tensor._make_wrapper_subclass(
            cls, plain.shape, dtype=plain.dtype, device=plain.device, strides=plain.stride()
        )
        made.plain, made.refused = plain, refused
        return made

    def values(self) -> torch.Tensor:
        """Returns the values as a plain tensor."""
        return self.plain

    def __tensor_flatten__(self):
        return ["plain"], self.refused

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, outer_size, outer_stride):
        return cls(inner["plain"], meta)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _dispatched(function, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, *, tensor_contents=None) -> str:
        return repr(self.plain)


def held(parameter: object) -> bool:
    """Returns whether a parameter is held in FP8."""
    return isinstance(parameter, HeldWeight)


def plain_values(weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight itself, or the values of one that is held in FP8, with its gradient."""
    return weight.clone() if isinstance(weight, HeldWeight) else weight


def become_held(parameter: nn.Parameter, kind: TensorType) -> None:
    """Holds a parameter in FP8 from now on. It stays the same object, with its gradient and its attributes. Raises
    RuntimeError if autograd, or a compiled model, holds the tensor too."""
    master = parameter.detach()
    master = master.contiguous() if master.dtype == torch.float32 else master.float().contiguous()
    weight = HeldWeight.of(master, kind, parameter.dtype)
    made = _parameter(weight, True, parameter.requires_grad, dict(parameter.__dict__))
    gradient, parameter.grad = parameter.grad, None
    try:
        torch.utils.swap_tensors(parameter, made)
    finally:
        parameter.grad = gradient


@torch.no_grad()
def quantize_again(weights: Iterable[HeldWeight]) -> None:
    """Makes the codes of weights from their masters: each is rounded to the weight's dtype and quantised as a layer
    quantises a weight of that dtype. Masters of another dtype are rounded in a few launches for all of them."""
    together: list[HeldWeight] = []
    count = 0
    for weight in weights:
        if weight.dtype == torch.float32:
            _quantize(weight, weight.master)
            continue
        if together and (
            count + weight.numel() > _TOGETHER
            or (weight.dtype, weight.device) != (together[0].dtype, together[0].device)
        ):
            _quantize_rounded(together)
            together, count = [], 0
        together.append(weight)
        count += weight.numel()
    if together:
        _quantize_rounded(together)


def _quantize_rounded(weights: list[HeldWeight]) -> None:
    sizes = [weight.numel() for weight in weights]
    # Parts begin at multiples of 256 elements, because sizes of weights are multiples of 16 x 16.
    memory = torch.empty(sum(sizes), dtype=weights[0].dtype, device=weights[0].device)
    rounded = [part.view(weight.shape) for part, weight in zip(memory.split(sizes), weights, strict=True)]
    torch._foreach_copy_(rounded, [weight.master for weight in weights])
    for weight, values in zip(weights, rounded, strict=True):
        _quantize(weight, values)


def _quantize(weight: HeldWeight, values: torch.Tensor) -> None:
    ops.quantize_weight(values, _CODES[weight.kind], weight.codes, weight.scales)
    torch.autograd.graph.increment_version([weight.codes, weight.scales])


def _parameter(weight: HeldWeight, is_parameter: bool, requires_grad: bool, attributes: dict) -> HeldWeight:
    if is_parameter:
        weight = nn.Parameter(weight, requires_grad)
    weight.__dict__.update(attributes)
    return weight


def _rebuilt(cls, codes, scales, kind, dtype, master, *rest) -> HeldWeight:
    return _parameter(cls(codes.view(torch.float8_e4m3fn), scales, kind, dtype, master), *rest)


# ---- operations

_HELD = (HeldWeight, HeldView)


def _dispatched(function, args: tuple, kwargs: dict):
    """Returns what an operation gives of the values of weights."""
    own = _OWN_RULES.get(function)
    if own is not None:
        return own(function, *args, **kwargs)
    writes, is_view = _effects_of(function)
    for i, name in writes:
        _refuse_writes(function, args[i] if i < len(args) else kwargs.get(name))
    stand_in = _shape_of if function.overloadpacket in _READ_NO_VALUES else _values_of
    result = function(*tree_map_only(_HELD, stand_in, args), **tree_map_only(_HELD, stand_in, kwargs))
    if not is_view:
        return result
    refused = next(part.refused for part in tree_leaves((args, kwargs)) if isinstance(part, _HELD))
    return tree_map_only(torch.Tensor, lambda plain: HeldView(plain, refused), result)


@functools.cache
def _effects_of(function) -> tuple[list[tuple[int, str]], bool]:
    """Returns the arguments that an operation writes, and whether its results are views of one."""
    aliases = [(i, a.name, a.alias_info) for i, a in enumerate(function._schema.arguments) if a.alias_info is not None]
    writes = [(i, name) for i, name, alias in aliases if alias.is_write]
    is_view = len(aliases) > len(writes)
    # The schemas of collectives do not say that they write their first argument.
    if function.namespace == "c10d" and function.overloadpacket.__name__.endswith("_"):
        writes.append((0, function._schema.arguments[0].name))
    return writes, is_view


def _refuse_writes(function, value) -> None:
    for part in tree_leaves(value):
        if isinstance(part, _HELD):
            raise NotImplementedError(f"octile: {function.overloadpacket} {part.refused}")


def _values_of(weight: HeldWeight | HeldView) -> torch.Tensor:
    return weight.values()


def _same(_, weight):
    return type(weight)(weight.codes, weight.scales, weight.kind, weight.dtype, weight.master)


def _strided(function, weight, size, stride, storage_offset=None):
    """What FSDP2 makes of a weight that it has gathered is the weight."""
    if isinstance(weight, HeldWeight) and weight.master is None and not storage_offset:
        if tuple(size) == tuple(weight.shape) and tuple(stride) == weight.stride():
            return _same(function, weight)
    return HeldView(function(weight.values(), size, stride, storage_offset), weight.refused)


def _copied(function, weight, values, non_blocking=False):
    source = values.values() if isinstance(values, _HELD) else values
    if not isinstance(weight, _HELD):
        return function(weight, source, non_blocking)
    if isinstance(weight, HeldView) or weight.master is None:
        _refuse_writes(function, weight)
    if isinstance(values, HeldWeight) and values.master is not None:
        source = values.master
        if source is weight.master:
            return weight
    elif weight.is_of(source):  # so that checkpoints, and DDP's broadcast, leave masters as exact as they are
        return weight
    weight.master.copy_(source, non_blocking)
    quantize_again([weight])
    return weight


def _of_layer(function, *args, **others):
    """A pass of a layer takes codes and scales of its weight."""
    places, defaults = _places_of(function)
    call = [*args, *defaults[len(args) :]]
    for name, value in others.items():
        call[places[name]] = value
    kind = _kind_of(call[places["recipe"]])
    # A layer of another recipe, or one that records maxima of W, quantises the weight's values.
    records = "scaling" in places and call[places["scaling"]] is not None
    for name, scales in _SCALES.items() if not records else ():
        weight = call[places[name]] if scales in places else None
        if isinstance(weight, HeldWeight) and (weight.kind is kind or weight.kind == kind):
            call[places[name]], call[places[scales]] = weight.codes, weight.scales
            if "w_gradient" in places:
                call[places["w_gradient"]] = _GRADIENTS[weight.dtype]
    return function(*[value.values() if isinstance(value, _HELD) else value for value in call])


@functools.cache
def _places_of(function) -> tuple[dict[str, int], list]:
    """Returns where the arguments of an operator are, and their defaults."""
    arguments = function._schema.arguments
    return {argument.name: i for i, argument in enumerate(arguments)}, [a.default_value for a in arguments]


@functools.cache
def _kind_of(code: int) -> TensorType | None:
    """Returns the type of W of a recipe whose weights may be held in FP8."""
    recipe = recipe_of(code)
    return recipe.weight if may_be_held(recipe) else None


def _shape_of(weight: HeldWeight | HeldView) -> torch.Tensor:
    """Returns a tensor of the weight's shape, dtype and device without memory for it."""
    return torch.empty((), dtype=weight.dtype, device=weight.device).expand(weight.shape)


_ATEN = torch.ops.aten
_READ_NO_VALUES = frozenset(
    (
        *(_ATEN.empty_like, _ATEN.zeros_like, _ATEN.ones_like, _ATEN.full_like, _ATEN.rand_like, _ATEN.randn_like),
        *(_ATEN.new_empty, _ATEN.new_zeros, _ATEN.new_ones, _ATEN.new_full, _ATEN.new_empty_strided),
    )
)
#: The weights of operators, and the arguments that scales of held ones are.
_SCALES = {"weight": "w_scales", "gate": "gate_scales", "up": "up_scales", "down": "down_scales"}
_LAYER_PASSES = (
    ops.mlp_output,
    *(ops.linear_forward, ops.linear_output, ops.linear_backward, ops.linear_backward_into),
    *(ops.experts_forward, ops.experts_backward, ops.experts_backward_into),
    *(ops.quantized_backward, ops.quantized_backward_into),
)
_OWN_RULES = {
    _ATEN.detach.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.as_strided.default: _strided,
    _ATEN.copy_.default: _copied,
} | {passes.default: _of_layer for passes in _LAYER_PASSES}
