"""Experts that another library's modules hold as 3-D parameters: what such a module is after ``convert``. Its class, as
far as ``isinstance`` sees it, its parameters and their names stay."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING

import torch
from torch import nn

from octile._types import refuse
from octile.torch.expert_mlp import activation_now, expert_mlps, is_usual_gate, may_fuse
from octile.torch.grouped import exchanges
from octile.torch.layer import Layer, WeightOwner
from octile.torch.mixture import both, down, route, rows_of, tokens_of, up
from octile.torch.recipes import Recipe
from octile.torch.weights import forget

if TYPE_CHECKING:
    from octile.torch.distributed.expert_exchange import Spread

#: The name of the implementation in transformers' registry.
NAME = "octile"
#: Before the name of a parameter: that of its ``ExpertWeight``.
PREFIX = NAME + "_"


class ExpertWeight(Layer):
    """The layer of one weight of converted experts: what is switched, watched and kept. The weight stays a parameter of
    the experts' module, and this one has no state."""

    of_a_call = "rows"

    def __init__(self, owner: nn.Module, name: str, recipe: Recipe, transposed: bool, rows: int) -> None:
        experts = owner._parameters[name].shape[0]
        self._set_up(recipe, True, experts)
        super().__init__()
        self.__dict__["_place"] = owner, name  # not a submodule
        self.experts, self.transposed = experts, transposed
        self.rows = rows  #: of a token
        self._weight_is(self.weight)

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        """The parameter: [experts, out, in], or ``transposed`` [experts, in, out]."""
        owner, name = self._place
        return owner._parameters[name]

    def _weight_is(self, weight: nn.Parameter, before: nn.Parameter | None = None) -> None:
        # A pass of a weight [experts, in, out] reads the other copy than a layer's would, so none is kept.
        if not self.transposed:
            super()._weight_is(weight, before)
        elif self._scaling is not None:
            self._scaling.weight_is(self, weight, before)

    def _be_part(self, experts: int) -> None:
        """Says that the weight is a part of it from now on, with this number of experts."""
        self._set_up_again(self.recipe, experts)
        self.__dict__["experts"] = experts
        self._weight_is(self.weight)

    def _change_recipe(self, recipe: Recipe) -> None:
        forget(self.weight)
        self._set_up_again(recipe, self.experts)
        self._weight_is(self.weight)

    def least_now(self) -> int:
        owner, _ = self._place
        if owner.spread is not None:
            return 0
        return owner.least_rows[0 if owner.training else 1 if self._rule.trusted else 2]

    @property
    def is_exchanged(self) -> bool:
        """Whether results are marked in the word of input gradients, and those in that of results."""
        return self.transposed and self._scaling is None and exchanges(self._code)

    def extra_repr(self) -> str:
        return f"experts={self.experts}, {self._recipe_text()}"


class TakenExperts(WeightOwner):
    """The additions of converted experts to the unconverted ones.

    ``least_rows``: calls with fewer rows (tokens times experts of a token) compute without FP8, as ``least_tokens`` of
    ``Linear`` says.
    """

    taken_from: type[nn.Module]
    least_rows: tuple[int, int, int]
    spread: Spread | None = None  #: how the experts lie on several ranks; see octile.torch.distributed

    def _take(
        self, weights: dict[str, bool], recipe: Recipe, least_rows: tuple[int, int, int], rows: int
    ) -> None:  # fmt: skip
        """Begins. weights: the names of the parameters, and whether each is [experts, in, out]. rows: of a token."""
        for name, transposed in weights.items():
            self.add_module(PREFIX + name, ExpertWeight(self, name, recipe, transposed, rows))
        self.__dict__["least_rows"] = least_rows

    def _leave(self) -> None:
        """Becomes what it was before it was converted."""
        for name in self._fp8_weights():
            del self._modules[PREFIX + name]
        del self.__dict__["least_rows"]
        self.__class__ = self.taken_from

    def _fp8_weights(self) -> dict[str, Layer]:
        return {n.removeprefix(PREFIX): m for n, m in self._modules.items() if isinstance(m, ExpertWeight)}

    def _layer_of(self, name: str) -> tuple[ExpertWeight, torch.Tensor]:
        """Returns the layer of a parameter, and the parameter, or this rank's part of it."""
        return self._modules[PREFIX + name], self._local(name)

    def _local(self, name: str) -> torch.Tensor:
        parameter = self._parameters[name]
        return parameter.to_local() if hasattr(parameter, "to_local") else parameter

    def _be_spread(self, spread: Spread) -> None:
        self.__dict__["spread"] = spread
        for layer in self._fp8_weights().values():
            layer._be_part(spread.local)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if self.spread is None:
            super().register_parameter(name, param)
        else:  # DTensors, whose local parts forward reads
            nn.Module.register_parameter(self, name, param)

    def _has_too_few(self, rows: int, layer: Layer) -> bool:
        return rows < layer.least_now()

    def __reduce_ex__(self, protocol):
        # Pickle finds no class that was made at run time.
        _, _, *rest = super().__reduce_ex__(protocol)
        return again, (type(self).__bases__[0], self.taken_from), *rest


def again(kind: type[nn.Module], base: type[nn.Module]) -> nn.Module:
    """Returns a module of ``taken_class`` whose attributes are set next."""
    taken = taken_class(kind, base)
    return taken.__new__(taken)


@functools.cache
def taken_class(kind: type[nn.Module], base: type[nn.Module]) -> type[nn.Module]:
    """Returns the class of modules of ``base`` that were converted."""
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base.__name__, (kind, base), names | {"taken_from": base})


# ---- transformers


class ExpertsOfTransformers(TakenExperts):
    """Experts whose forward asks transformers' registry of implementations, which finds ``registered`` there."""

    def _take(self, *arguments) -> None:
        super()._take(*arguments)
        self.__dict__.setdefault("_config_before", self.config)  # other modules have the same one
        self.config = copy.copy(self.config)
        self.config.__dict__["_experts_implementation_internal"] = NAME
        gate = getattr(type(self), "_apply_gate", None) if self.has_gate else None
        self.__dict__["_usual_gate"] = gate if gate is not None and is_usual_gate(gate) else None
        self.__dict__["_may_fuse"] = True

    def _leave(self) -> None:
        super()._leave()
        self.config = self.__dict__.pop("_config_before")
        del self.__dict__["_usual_gate"], self.__dict__["_may_fuse"]

    def fused_activation(self, plain: bool = False) -> str | None:
        """Returns the activation that a quantiser computes in a call now, or None. plain: the call is without FP8."""
        if not self._may_fuse or self.has_bias or self.spread is not None:
            return None
        if self.has_gate and self._usual_gate is None:
            return None
        first, last = self._fp8_weights().values()
        return activation_now(self, self._usual_gate) if may_fuse((first, last), plain) else None


def registered(
    self: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The implementation "octile" of transformers' experts: [tokens, hidden], of experts and scores [tokens, top_k]."""
    if not isinstance(self, ExpertsOfTransformers):
        allowed = "is the name that octile.torch.convert(model) sets in the experts that it converts"
        raise refuse("experts_implementation", NAME, allowed)
    if getattr(self, "_is_expert_parallel", False):
        raise refuse("experts", "spread over devices", "are experts that are whole on each device, or unconverted")
    if self.spread is not None:
        return self.spread.forward(self, hidden_states, top_k_index, top_k_weights)
    up_name = "gate_up_proj" if self.has_gate else "up_proj"
    (first, up_weight), (last, down_weight) = self._layer_of(up_name), self._layer_of("down_proj")
    way = route(top_k_index, up_weight.shape[0])
    plain = self._has_too_few(way.order.shape[0], first)
    scores = rows_of(top_k_weights.reshape(-1, 1), way, 1)
    if (name := self.fused_activation(plain)) is not None:
        weights = up_weight, down_weight
        result = expert_mlps((first, last), weights, hidden_states, way, scores, name, self.has_gate)
        return result.to(hidden_states.dtype)
    inner = up(first, up_weight, hidden_states, way, plain)
    one_hot = one_hot_of(way.offsets, inner) if self.has_bias else None
    if one_hot is not None:
        inner = torch.addmm(inner, one_hot, self._parameters[up_name + "_bias"].to(inner.dtype))
    activation = self._apply_gate if self.has_gate else self.act_fn
    result = tokens_of(down(last, down_weight, activation, (inner,), scores, way.offsets, plain), way)
    if one_hot is not None:
        shares = tokens_of(one_hot * scores.to(one_hot.dtype), way)
        result = torch.addmm(result, shares, self._parameters["down_proj_bias"].to(result.dtype))
    return result.to(hidden_states.dtype)


def one_hot_of(offsets: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns [rows, experts], of rows' dtype: 1 for the expert of a row. A product with it finds a bias for every row,
    and the bias's gradient is added up in fp32."""
    numbers = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return ((numbers >= offsets[:-1]) & (numbers < offsets[1:])).to(rows.dtype)


# ---- torchtitan


class ExpertsOfTorchtitan(TakenExperts):
    """torchtitan's ``GroupedExperts``: w2(silu(w1(x)) * w3(x)) of rows that are sorted by expert."""

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        # Expert parallelism makes DTensors of them, whose local parts forward reads.
        nn.Module.register_parameter(self, name, param)

    def forward(self, x: torch.Tensor, num_tokens_per_expert: torch.Tensor) -> torch.Tensor:
        """Returns the experts' results [rows, dim] of x [rows, dim], of x's dtype, computed in bfloat16. Rows behind
        those that are counted are not written."""
        if self.spread is not None:
            return self.spread.forward(self, x, num_tokens_per_expert)
        offsets = torch.cumsum(num_tokens_per_expert, 0, dtype=torch.int32)
        (first, w1), (second, w3), (last, w2) = map(self._layer_of, ("w1", "w3", "w2"))
        plain = self._has_too_few(x.shape[0], first)
        inner = both((first, second), (w1, w3), x.bfloat16(), offsets, plain)
        y = down(last, w2, swiglu, inner, None, torch.nn.functional.pad(offsets, (1, 0)), plain)
        return y.type_as(x)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up
