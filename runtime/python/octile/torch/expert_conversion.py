"""Which modules of a model are experts that ``convert`` takes, and why others stay."""

from __future__ import annotations

import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import nn

from octile.torch.calls import describe_least
from octile.torch.expert_modules import (
    NAME,
    ExpertsOfTorchtitan,
    ExpertsOfTransformers,
    TakenExperts,
    registered,
    taken_class,
)
from octile.torch.grouped import RECIPES, WITHOUT_WEIGHT_GRADIENTS
from octile.torch.layer import MULTIPLE
from octile.torch.modules import has_forward_of_class, is_called_by_accelerate, why_no_operand
from octile.torch.other_matrices import is_lazy
from octile.torch.held_weight import held
from octile.torch.recipes import Recipe

_REGISTRY = "transformers.integrations.moe"


class Sizes(NamedTuple):
    """Sizes of one expert's weight."""

    out_features: int
    in_features: int

    def __str__(self) -> str:
        return f"[{self.out_features}, {self.in_features}]"


class Mlps(NamedTuple):
    """Sizes of a whole module of experts, those of each expert's weight behind the activation."""

    out_features: int
    in_features: int
    experts: int


@dataclass
class Form:
    """How a module has its experts."""

    kind: type[TakenExperts]
    weights: dict[str, bool]  #: names of the parameters, those behind the activation last; True: [experts, in, out]
    others: tuple[str, ...] = ()  #: names of parameters that are not weights, such as biases
    top_k: int | None = None  #: experts of a token, if that is known
    inner: int = 1  #: columns before the activation for one behind it


class Gains(Protocol):
    """From how many rows on experts gain, as ``convert`` knows it. source: None if sizes alone decide."""

    source: str | None

    def reason_to_stay(self, layer) -> str | None: ...
    def least_tokens(self, layer) -> tuple[tuple[int, int, int], str]: ...


@dataclass
class Found:
    """One module of experts, and what becomes of it."""

    module: nn.Module
    names: list[str]
    form: Form | None = None
    reason: str | None = None  #: to stay
    sizes: list[Sizes] = field(default_factory=list)
    least_rows: tuple[int, int, int] = (0, 0, 0)
    is_small: bool = False  #: stays because of its sizes and the thresholds
    source: str | None = None  #: which verdicts decided; None if none did

    def text(self) -> str:
        """Returns what a report says of experts that are converted."""
        weights = next(iter(self.module._fp8_weights().values())).experts
        return f"{weights} experts of {' and '.join(map(str, self.sizes))}{describe_least(self.least_rows, 'rows')}"

    def take(self, recipe: Recipe, copies: str, fuse: bool = True) -> None:
        """Converts the module, or gives it another recipe. fuse: a quantiser may compute the activation."""
        self._take(recipe, copies)
        if isinstance(self.module, ExpertsOfTransformers):
            self.module.__dict__["_may_fuse"] = fuse

    def _take(self, recipe: Recipe, copies: str) -> None:
        if isinstance(self.module, TakenExperts):
            for layer in self.module._fp8_weights().values():
                layer._change_recipe(recipe)
                layer.set_rule(copies=copies)
            self.module.__dict__["least_rows"] = self.least_rows
            return
        if self.form.kind is ExpertsOfTransformers:
            sys.modules[_REGISTRY].ALL_EXPERTS_FUNCTIONS.register(NAME, registered)
        else:
            self.module.__dict__.pop("forward", None)  # the class's own
        self.module.__class__ = taken_class(self.form.kind, type(self.module))
        self.module._take(self.form.weights, recipe, self.least_rows, self.form.top_k or 1)
        for layer in self.module._fp8_weights().values():
            layer.set_rule(copies=copies)


def find_experts(
    model: nn.Module, recipe: Recipe, gains: Callable[[int | None], Gains],
    reason_by_name: Callable[[list[str], nn.Module], str | None], again: bool = False,
) -> list[Found]:  # fmt: skip
    """Returns the experts of a model, decided. gains: of the rows that each token makes, None if that is not known.
    reason_by_name: why a module of these names stays, or None. again: also converts those that have the recipe
    already."""
    names: dict[nn.Module, list[str]] = defaultdict(list)
    owners: Counter[int] = Counter()
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    for module in names:
        owners.update(id(p) for p in module._parameters.values() if p is not None)
    found = []
    for module, its in names.items():
        form = _form_again(module, recipe, again) if isinstance(module, TakenExperts) else form_of(module)
        if form is None:
            continue
        made = Found(module, its)
        found.append(made)
        if isinstance(form, str):
            made.reason = form
            continue
        made.form = form
        made.reason = reason_by_name(its, module) or _why_not(module, form, recipe, owners)
        if made.reason is None:
            _decide(made, gains(form.top_k))
    return found


def _decide(made: Found, gains: Gains) -> None:
    """Sets from how many rows on the experts gain, or why they stay."""
    module, form = made.module, made.form
    shapes = [_sizes_of(module._parameters[name], transposed) for name, transposed in form.weights.items()]
    made.sizes, made.source = list(dict.fromkeys(shapes)), gains.source
    if any(size % MULTIPLE for sizes in made.sizes for size in sizes):
        made.reason = f"sizes are not multiples of {MULTIPLE}"
        return
    whole = Mlps(*shapes[-1], next(module._parameters[name].shape[0] for name in form.weights))
    for sizes in made.sizes if gains.source is None else [whole]:
        if (reason := gains.reason_to_stay(sizes)) is not None:
            made.reason, made.is_small = reason, gains.source is not None
            return
    made.least_rows = gains.least_tokens(whole)[0]


def _sizes_of(weight: torch.Tensor, transposed: bool) -> Sizes:
    _, rows, cols = weight.shape
    return Sizes(cols, rows) if transposed else Sizes(rows, cols)


# ---- what is taken


def _form_again(module: TakenExperts, recipe: Recipe, again: bool) -> Form | str:
    """Returns the form of converted experts that may have another recipe, or why they stay."""
    layers = module._fp8_weights().values()
    if all(layer.recipe == recipe for layer in layers) and not again:
        return "is converted already"
    if module.spread is not None:
        return "is converted already; its experts are spread over ranks"
    if any(held(layer.weight) or layer._sharding is not None for layer in layers):
        return "is converted already; its weights are held in FP8 or sharded"
    taken = isinstance(module, ExpertsOfTransformers)
    return _form_of_transformers(module) if taken else _form_of_torchtitan(module)


def form_of(module: nn.Module) -> Form | str | None:
    """Returns how a module has experts, why not although it has, or None for other modules."""
    if isinstance(module, TakenExperts):
        return "is converted already"
    weights = {name for name, p in module._parameters.items() if p is not None and not is_lazy(p) and p.dim() == 3}
    if "down_proj" in weights and weights & {"gate_up_proj", "up_proj"}:
        return _form_of_transformers(module)
    if {"w1", "w2", "w3"} <= weights and type(module).__name__ == "GroupedExperts":
        return _form_of_torchtitan(module)
    return None


def _form_of_torchtitan(module: nn.Module) -> Form | str:
    arguments = [*inspect.signature(type(module).forward).parameters][1:]
    if arguments != ["x", "num_tokens_per_expert"]:
        return f"is a GroupedExperts whose forward takes {', '.join(arguments)}, not x, num_tokens_per_expert"
    if is_called_by_accelerate(module):
        return "is called by a hook of accelerate"
    return Form(ExpertsOfTorchtitan, {"w1": False, "w3": False, "w2": False})


def _form_of_transformers(module: nn.Module) -> Form | str:
    kind, own = type(module).__name__, module.__dict__
    interface = _closure_of(type(module).forward).get("experts_interface")
    moe = sys.modules.get(_REGISTRY)
    if interface is None:
        return f"is a {kind}, whose forward does not ask transformers' registry of experts"
    if moe is None or interface is not moe.ALL_EXPERTS_FUNCTIONS:
        return f"is a {kind}, whose forward asks another registry than transformers' own"
    attributes = ("has_gate", "has_bias", "is_transposed", "config")
    if missing := [name for name in attributes if name not in own]:
        return f"is a {kind} without {missing[0]}, which transformers' registry goes by"
    if _is_spread(module):
        return "its experts are spread over devices"
    if own.get("has_post_expert_norm"):
        return "has a norm after each expert"
    transposed = own["is_transposed"]
    up = "gate_up_proj" if own["has_gate"] else "up_proj"
    biases = (up + "_bias", "down_proj_bias") if own["has_bias"] else ()
    if not own["has_gate"] and not callable(getattr(module, "act_fn", None)):
        return "has no act_fn"
    top_k = getattr(own["config"], "num_experts_per_tok", None)
    weights = {up: transposed, "down_proj": transposed}
    inner = 2 if own["has_gate"] else 1
    return Form(ExpertsOfTransformers, weights, biases, top_k if isinstance(top_k, int) else None, inner)


def _is_spread(module: nn.Module) -> bool:
    """Returns whether a module of transformers has a part of the experts. Earlier releases have no word for it: their
    module then has fewer than its configuration says."""
    if "_is_expert_parallel" in module.__dict__:
        return module._is_expert_parallel
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    stated = [n for name in names if isinstance(n := getattr(module.config, name, None), int)]
    return bool(stated) and module._parameters["down_proj"].shape[0] not in stated


def _closure_of(function: object) -> dict[str, object]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or cells is None:
        return {}
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def _why_not(module: nn.Module, form: Form, recipe: Recipe, owners: Counter[int]) -> str | None:
    """Returns why experts of a form cannot be converted, or None."""
    if not has_forward_of_class(module):
        return "has a forward of its own"
    if "parametrizations" in module._modules:
        return "has a parametrization of " + ", ".join(module._modules["parametrizations"])
    names = [*form.weights, *form.others]
    inside = {name for name, _ in module.named_parameters()}
    if strange := sorted(inside - set(names)):
        return f"has a parameter {strange[0]!r}, which its experts do not have elsewhere"
    for name in names:
        parameter = module._parameters.get(name)
        if parameter is None:
            return f"has no {name}"
        if (reason := why_no_operand(name, parameter)) is not None:
            return reason
        if owners[id(parameter)] > 1:
            return f"shares its {name} with another module"
    if (reason := _why_no_fit(module, form)) is not None:
        return reason
    if recipe.name not in (*RECIPES, *WITHOUT_WEIGHT_GRADIENTS, "delayed"):
        return f"recipe {recipe.name} has no experts"
    trains = recipe.dw == "fp8" and any(module._parameters[n].requires_grad for n in form.weights)
    if trains and recipe.name in WITHOUT_WEIGHT_GRADIENTS:
        return f"recipe {recipe.name} has no weight gradients of experts; {recipe.name}:dw=bf16 has"
    return None


def _why_no_fit(module: nn.Module, form: Form) -> str | None:
    *first, last = form.weights
    shapes = {name: list(module._parameters[name].shape) for name in form.weights}
    sizes = {name: _sizes_of(module._parameters[name], form.weights[name]) for name in form.weights}
    experts = {shape[0] for shape in shapes.values()}
    wanted = Sizes(sizes[last].in_features * form.inner, sizes[last].out_features)
    if len(experts) > 1 or 0 in experts or any(sizes[name] != wanted for name in first):
        return "its weights do not fit each other: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    expert = experts.pop()
    for bias, name in zip(form.others, form.weights, strict=False):
        if list(module._parameters[bias].shape) != [expert, sizes[name].out_features]:
            return f"its {bias} is {list(module._parameters[bias].shape)}, not {[expert, sizes[name].out_features]}"
    return None
