"""``convert``: turns the linear layers of a model into FP8 layers, and reports each with its reason."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from octile._types import is_integer, one_of, refuse, token_range
from octile.torch._arguments import check_flag, check_model
from octile.torch.calls import describe_least
from octile.torch.conversion_report import Report
from octile.torch.expert_conversion import Found, find_experts
from octile.torch.frozen import FrozenLinear
from octile.torch.gated_modules import fuse_all
from octile.torch.kept_inputs import behind_attention
from octile.torch.layer import Layer
from octile.torch.modules import MULTIPLE, NEVER, Linear, why_not_taken
from octile.torch.norms import fuse_norms
from octile.torch.other_matrices import is_lazy, other_matrices
from octile.torch.presets import PRESETS, Places, as_filter
from octile.torch.held_weight import held
from octile.torch.recipes import Recipe, as_recipe
from octile.torch.report_memory import kept_of_inputs
from octile.torch.status import left
from octile.torch.thresholds import COMPARED_TOKENS, EXPERTS, LAYERS, thresholds_of_recipe
from octile.torch.transposed import find_transposed, sizes_of, take
from octile.torch.weights import COPIES


def convert(
    model: nn.Module,
    recipe: Recipe | str = "blockwise",
    filter: Callable[[str, nn.Linear], bool] | None = None,
    min_dims: int | str = "auto",
    preset: str = "deepseek-v3",
    tokens: int | tuple[int, int] | None = None,
    weights: str = "none",
    fuse: bool = True,
) -> Report:
    """Turns every ``nn.Linear`` of ``model`` that FP8 makes faster into an ``octile.torch.Linear``, in place: the layer
    stays the same object, with its parameters, buffers, hooks and attributes. Modules of transformers' mixtures and
    torchtitan's ``GroupedExperts`` that hold experts as 3-D parameters compute in FP8 too, and so do transformers'
    ``Conv1D`` layers.

    preset: "deepseek-v3" leaves embeddings, the output layer, routers and low-rank adapters unconverted, by name. The
    last layer with the shape of the largest embedding is an output layer too, unless it is inside a block. "all-linear"
    converts them all. filter: called with a layer's dotted name and the layer, or those of a module of experts; only
    those for which it returns True are converted. A function with parameters named, or annotated, (module, fqn) gets
    them in that order. Layers also stay if their sizes are not multiples of 16, if they are subclasses of
    ``nn.Linear``, if they have their own forward or parametrization, or if another module or library uses the weight. A
    layer with several names stays if one of them is excluded. ``model`` itself must not be an ``nn.Linear``, and not
    sharded by FSDP. Weights may be on the meta device, if all are.

    min_dims: with "auto" the verdicts in ``octile.torch.thresholds`` decide, or those on this card in the file that the
    environment variable ``OCTILE_VERDICTS`` names (``octile bench verdict --records FILE``). A layer is converted if
    FP8 pays at some number of tokens, and its calls with fewer tokens compute as ``nn.Linear`` does
    (``Linear.least_tokens``). tokens: the tokens of a call, (least, most) or one number; layers in which FP8 does not
    pay at the most stay unconverted. An integer ``min_dims`` is the minimum of in_features and out_features, and all
    calls use FP8.

    weights: which FP8 copies of weights a step keeps from one pass to the next. With "none" each pass makes its own,
    and training needs no memory for them. "rowwise" and "both" take one and two bytes an element, and save quantising
    in every microbatch except the first, with "both" also in backward. Calls without gradients keep the row-wise copy
    in any case, until training continues.

    fuse: MLPs whose forward is down(act(gate(x)) * up(x)) or down(act(up(x))) of converted layers compute as
    ``gated_mlp`` does, and keep nothing of the product for backward. act is SiLU, GELU's tanh form, ReLU or its square.
    RMS norms and layer norms, recognised by their computation, use PyTorch's fused kernels, which round a result once
    where most models round twice. A module that is changed later uses its own forward again. False does neither.

    Layers and experts converted by an earlier call get this recipe and restart their histories; those that this call
    excludes keep theirs. ``unconvert`` undoes all of it. Warns (UserWarning) if the model has no FP8 layer afterwards.
    """
    check_model(model)
    check_flag(fuse, "fuse")
    recipe, filter = as_recipe(recipe), as_filter(filter)
    weights = one_of("weights", weights, COPIES)
    gains = _gains_of(recipe, min_dims, tokens)
    found = layers_of(model, filter, preset, Linear, recipe)
    mixtures = mixtures_of(model, recipe, filter, min_dims, preset, tokens)
    transposed = find_transposed(model, recipe, gains, reason_by_name_in(model, preset, filter))
    sources = dict.fromkeys([gains.source, *(experts.source for experts in mixtures)])
    thresholds = "; ".join(source for source in sources if source is not None)
    report = Report(recipe, skipped=found.scripted, thresholds=thresholds or None, copies=weights)
    taken: dict[Linear, str] = {}
    attended = behind_attention(model)
    for layer, names in found.names.items():
        reason = found.reasons[layer]
        if reason is None:
            reason = gains.reason_to_stay(layer)
            if reason is not None and gains.source is not None:
                report.is_too_small(layer.in_features, layer.out_features)
        if reason is not None:
            other = isinstance(layer, Linear) and layer._by_convert and layer.recipe != recipe
            reason += f"; keeps recipe {layer.recipe.name}" if other else ""
            report.skipped |= dict.fromkeys(names, reason)
            left[layer] = reason
            continue
        least, description = gains.least_tokens(layer)
        Linear._take_over(layer, recipe, least)
        layer.set_rule(copies=weights)
        layer.keeps_input = layer in attended and not recipe.is_delayed  # which keeps the FP8 copy
        if layer.keeps_input:
            report.keep_input += names
        report.converted |= dict.fromkeys(names, f"[{layer.out_features}, {layer.in_features}]{description}")
        report.elements += layer.weight.numel()
        taken[layer] = names[0]
    for experts in mixtures:
        _convert_experts(experts, report, fuse)
    for layer, names, reason, is_small in transposed:
        _convert_transposed(layer, names, reason, is_small, gains, report)
    leave_fast_paths(model)
    if fuse and report.converted:
        report.norm_kinds = fuse_norms(model)
    report.fused, report.unfused = fuse_all(model) if fuse else ([], {})
    report.kept = kept_of_inputs(model, taken, recipe)
    report.others = other_matrices(model, {found.module for found in mixtures} | {layer for layer, *_ in transposed})
    if not any(isinstance(module, Layer) for module in model.modules()):
        report.warn_if_nothing("convert", model)
    return report


def mixtures_of(
    model: nn.Module, recipe: Recipe, filter, min_dims, preset: str, tokens, again: bool = False
) -> list[Found]:
    """Returns the experts of a model's mixtures, and what ``convert`` does with them. again: also with those that have
    the recipe already."""
    lo, hi = (None, None) if tokens is None else token_range(tokens, or_one=True)

    @cache
    def gains_of(top_k: int | None) -> _BySize | _ByMeasurement:
        rows = None if lo is None or top_k is None else (lo * top_k, hi * top_k)
        return _gains_of(recipe, min_dims, rows, EXPERTS)

    return find_experts(model, recipe, gains_of, reason_by_name_in(model, preset, filter), again)


def reason_by_name_in(model: nn.Module, preset: str, filter) -> Callable[[list[str], nn.Module], str | None]:
    """Returns a function that gives the reason why a module other than a linear layer stays, by its name or by the
    filter."""
    places = Places(model, preset)

    def reason_by_name(names: list[str], module: nn.Module) -> str | None:
        for name in names:
            if (reason := places.reason_by_name(name)) is not None:
                return reason
        if filter is not None and not all(filter(name, module) for name in names):
            return "the filter leaves it"
        return None

    return reason_by_name


def _convert_transposed(
    layer: nn.Module, names: list[str], reason: str | None, is_small: bool, gains: _BySize | _ByMeasurement,
    report: Report,
) -> None:  # fmt: skip
    sizes = sizes_of(layer)
    if reason is None:
        least, description = gains.least_tokens(sizes)
        take(layer, report.recipe, least)
        report.converted |= dict.fromkeys(names, f"{sizes}, whose weight lies [in, out]{description}")
        report.elements += layer.weight.numel()
        return
    report.skipped |= dict.fromkeys(names, reason)
    left[layer] = reason
    if is_small:
        report.is_too_small(*sizes)


def _convert_experts(found: Found, report: Report, fuse: bool) -> None:
    if found.reason is None:
        found.take(report.recipe, report.copies, fuse)
        report.elements += sum(found.module._parameters[name].numel() for name in found.module._fp8_weights())
        report.converted |= dict.fromkeys(found.names, found.text())
        report.experts += found.names
        return
    report.skipped |= dict.fromkeys(found.names, found.reason)
    left[found.module] = found.reason
    if found.is_small:
        report.is_too_small(*(size for sizes in found.sizes for size in sizes))


@dataclass
class Layers:
    """The linear layers of a model, and why some of them stay."""

    names: dict[nn.Linear, list[str]]
    reasons: dict[nn.Linear, str | None]  #: None: it may be converted
    scripted: dict[str, str]  #: names of those that TorchScript has, to the reason


def layers_of(
    model: nn.Module, filter: Callable[[str, nn.Linear], bool] | None, preset: str, kind: type,
    recipe: Recipe | None = None,
) -> Layers:  # fmt: skip
    """Returns the linear layers of a model, and which of them become a ``kind``, or get ``recipe``. Raises TypeError
    and ValueError for arguments that ``convert`` does not take."""
    check_model(model)
    if isinstance(model, nn.Linear):
        instead = "; use Linear.from_linear" if kind is Linear else ""
        raise refuse("model", type(model).__name__, f"is a module that contains linear layers{instead}")
    check_order(model, "convert" if kind is Linear else "freeze_to_fp8")
    preset = one_of("preset", preset, PRESETS)
    filter = as_filter(filter)
    known = _Model(model, preset, kind, recipe)
    names: dict[nn.Linear, list[str]] = defaultdict(list)
    scripted = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear):
            names[module].append(name)
        elif isinstance(module, torch.jit.ScriptModule) and module.original_name == "Linear":
            scripted[name] = "is compiled by TorchScript"
    # All is decided before anything changes, because a filter may raise.
    reasons = {layer: _reason_to_stay(its, layer, filter, known) for layer, its in names.items()}
    return Layers(names, reasons, scripted)


def check_order(model: nn.Module, function: str) -> None:
    """Raises ValueError for a model that cannot be converted any more."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: no module can be of its classes
    sharded = () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
    for name, module in model.named_modules():
        if isinstance(module, sharded):
            what = f"sharded by FSDP in {name!r}" if name else "sharded by FSDP"
            allowed = f"is a model before it is sharded: call {function} first, and fully_shard after it"
            raise refuse("model", what, allowed)


class _Model:
    """The context of a layer in its model, which decides about it too: the other modules."""

    def __init__(self, model: nn.Module, preset: str, kind: type, recipe: Recipe | None) -> None:
        self.preset, self.kind, self.recipe = preset, kind, recipe
        #: kinds of layers that become a ``kind``
        self.taken = (nn.Linear,) if kind is Linear else (nn.Linear, Linear)
        modules = list(model.modules())
        #: ids of parameters that modules other than linear layers have too, such as tied embeddings
        self.shared = {id(p) for m in modules if not isinstance(m, nn.Linear) for p in m.parameters(recurse=False)}
        self.is_on_meta = all(p.is_meta for p in model.parameters())
        self.is_offloaded = any("_hf_hook" in m.__dict__ for m in modules)
        self.places = Places(model, preset)


def leave_fast_paths(model: nn.Module) -> None:
    """Keeps PyTorch's transformer encoders from kernels that read the weights of converted layers and do not call
    them."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder) and module not in _fast_paths:
            name = "activation_relu_or_gelu" if isinstance(module, nn.TransformerEncoderLayer) else "use_nested_tensor"
            _fast_paths[module] = name, getattr(module, name)
        if _is_converted_encoder(module):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder) and any(map(_is_converted_encoder, module.layers)):
            module.use_nested_tensor = False  # only these kernels take nested tensors


def restore_fast_paths(model: nn.Module) -> None:
    """Gives encoders these kernels back, if no layer in them is converted any more."""
    for module in model.modules():
        if module in _fast_paths and not any(isinstance(m, Linear | FrozenLinear) for m in module.modules()):
            setattr(module, *_fast_paths.pop(module))


#: The state that ``leave_fast_paths`` changes, as it was.
_fast_paths: weakref.WeakKeyDictionary[nn.Module, tuple[str, object]] = weakref.WeakKeyDictionary()


def _is_converted_encoder(module: nn.Module) -> bool:
    return isinstance(module, nn.TransformerEncoderLayer) and any(
        isinstance(m, Linear | FrozenLinear) for m in module.children()
    )


class _BySize:
    """Converts by the smaller of in_features and out_features."""

    source = None

    def __init__(self, smallest: int) -> None:
        self.smallest = smallest

    def reason_to_stay(self, layer: nn.Linear) -> str | None:
        small = min(layer.in_features, layer.out_features) < self.smallest
        return f"in_features or out_features is below {self.smallest}" if small else None

    def least_tokens(self, layer: nn.Linear) -> tuple[tuple[int, int, int], str]:
        return (0, 0, 0), ""


class _ByMeasurement:
    """Converts by the verdicts on layers or experts, for calls of lo to hi tokens or rows."""

    def __init__(self, recipe: str, lo: int, hi: int | None, of: str) -> None:
        self.recipe, self.lo, self.hi, self.of = recipe, lo, hi, of
        self.table, self.source = thresholds_of_recipe(recipe, of)
        self.unit = "rows" if of == EXPERTS else "tokens"

    def _experts(self, layer: nn.Linear) -> int:
        return layer.experts if self.of == EXPERTS else 1

    def _least(self, layer: nn.Linear) -> list[int | None]:
        sizes, experts = (layer.out_features, layer.in_features), self._experts(layer)
        return [self.table.least_tokens(*sizes, self.recipe, training, experts) for training in (True, False)]

    def reason_to_stay(self, layer: nn.Linear) -> str | None:
        least = min((tokens for tokens in self._least(layer) if tokens is not None), default=None)
        if least is None:
            return f"too small to gain at any measured number of {self.unit}"
        if self.hi is not None and self.hi < least:
            return f"gains from {least} {self.unit} on, and calls have at most {self.hi}"
        return None

    def least_tokens(self, layer: nn.Linear) -> tuple[tuple[int, int, int], str]:
        training, forward = self._least(layer)
        compared = None if forward is None else max(forward, COMPARED_TOKENS * self._experts(layer))
        least = tuple(
            NEVER if tokens is None else tokens if tokens > self.lo else 0 for tokens in (training, forward, compared)
        )
        return least, describe_least(least, self.unit)


def _gains_of(
    recipe: Recipe, min_dims: int | str, tokens: int | tuple[int, int] | None, of: str = LAYERS
) -> _BySize | _ByMeasurement:
    """of: what is decided about. tokens: of experts, rows."""
    if min_dims != "auto":
        if not is_integer(min_dims):
            raise refuse("min_dims", min_dims, "are an integer from 0 on and 'auto'")
        if tokens is not None:
            raise refuse("tokens", tokens, "is None with an integer min_dims, which converts for all numbers of tokens")
        return _BySize(min_dims)
    if tokens is None:
        return _ByMeasurement(recipe.name, 0, None, of)
    lo, hi = token_range(tokens, or_one=True)
    return _ByMeasurement(recipe.name, lo, hi, of)


def _may_change(layer: nn.Linear, recipe: Recipe | None) -> bool:
    """Returns whether a layer that ``convert`` has made may get another recipe."""
    if type(layer) is not Linear or not layer._by_convert or recipe in (None, layer.recipe):
        return False
    return layer._sharding is None and not held(layer._parameters.get("weight"))


def _reason_to_stay(names: list[str], layer: nn.Linear, filter, model: _Model) -> str | None:
    changes = model.kind is Linear and _may_change(layer, model.recipe)
    if isinstance(layer, model.kind) and not changes:
        also = "; its weight is held in FP8" if held(layer._parameters.get("weight")) else ""
        return f"is an octile.torch.{model.kind.__name__} already{also}"
    if "parametrizations" in layer._modules:
        return "has a parametrization of " + ", ".join(layer._modules["parametrizations"])
    if any(is_lazy(parameter) for parameter in layer._parameters.values()):
        return f"is a {type(layer).__name__} that has no sizes before its first call"
    if type(layer) not in model.taken and not changes:
        return f"is a {type(layer).__name__}, whose forward may differ"
    for name in names:
        if (reason := model.places.reason_by_name(name)) is not None:
            return reason
    weight = layer._parameters.get("weight")
    if weight is not None and id(weight) in model.shared:
        return "shares its weight with another module"
    if (reason := model.places.reason_by_shape(layer)) is not None:
        return reason
    if weight is not None and weight.is_meta:
        if model.is_offloaded:
            return "accelerate offloads its weight"
        if not model.is_on_meta:
            return "its weight is on the meta device, and the model's others are not"
    reason = why_not_taken(layer)
    if reason is not None:
        return reason
    if filter is not None and not all(filter(name, layer) for name in names):
        return "the filter leaves it"
    if any(size % MULTIPLE or size == 0 for size in (layer.in_features, layer.out_features)):
        return "sizes are not multiples of 16"
    return None
