"""``shapes``: the weights of a model as GEMMs, as ``octile shapes`` lists those of a ``config.json``."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import nn

from octile.torch._arguments import check_model
from octile.torch.conversion import layers_of
from octile.torch.expert_conversion import form_of
from octile.torch.expert_modules import TakenExperts
from octile.torch.modules import MULTIPLE, Experts, Linear
from octile.torch.recipes import Recipe, as_recipe

#: Bytes of the scales of a weight's block of rows and columns; 0 stands for all of a dimension.
_SCALES = {"tensor": (0, 0, 4), "row": (1, 0, 4), "128x128": (128, 128, 4), "1x32": (1, 32, 1), "32x32": (32, 32, 1)}


@dataclass(frozen=True)
class Row:
    """A weight that all of ``layers`` layers have: y[tokens, n] = x[tokens, k] w[n, k]^T."""

    role: str  #: its module within a layer: "self_attn.q_proj"
    layers: int
    n: int
    k: int
    bias: bool = False
    groups: int = 0  #: experts of a layer, each with a weight of its own; 0: none
    per_token: int = 0  #: experts that a token goes to
    why: str = ""  #: it stays out of FP8

    @property
    def parameters(self) -> int:
        """The parameters of one layer."""
        return (self.n * self.k + (self.n if self.bias else 0)) * max(self.groups, 1)


@dataclass
class Shapes:
    """The result of ``shapes``; ``str()`` is a table, ``to_json()`` a file for ``octile tune --model FILE``."""

    model: str
    recipe: str  #: "blockwise"
    rows: list[Row] = field(default_factory=list)  #: those that are multiplied in FP8 first
    layers: int = 0
    parameters: int = 0  #: of the whole model
    model_type: str = ""
    heads: dict[str, int] = field(default_factory=dict)  #: "heads" and "kv_heads", if its configuration says them

    @property
    def weights(self) -> list[Row]:
        """The rows that are multiplied in FP8."""
        return [row for row in self.rows if not row.why]

    @property
    def left_out(self) -> list[Row]:
        """The other rows."""
        return [row for row in self.rows if row.why]

    def to_json(self) -> str:
        """Returns a document in the form of ``octile shapes --json``."""
        model = {
            "model": self.model,
            "model_type": self.model_type,
            "layers": self.layers,
            **self.heads,
            "parallel": {"tp": 1, "ep": 1, "moe_tp": 1, "dp_attention": False},
            "weights": [self._weight(row) for row in self.weights],
            "left_out": [{**_common(row), "why": row.why} for row in self.left_out],
            "parameters": self.parameters,
            "mtp_parameters": 0,
            "remarks": [],
        }
        return json.dumps({"models": [model]}, indent=2)

    def _weight(self, row: Row) -> dict[str, object]:
        uses = row.layers * max(row.per_token, 1)
        elements = row.n * row.k
        return {
            **_common(row),
            "split": "?",  # the command knows usual names
            "recipe": self.recipe,
            "operations_per_token": float(2 * elements * uses),
            "bytes_per_token": float((elements + _scale_bytes(row, self.recipe)) * uses),
        }

    def __str__(self) -> str:
        lines = [("weight", "layers", "n", "k", "bias", "groups", "why")]
        for row in self.rows:
            groups = str(row.groups) if row.groups else "-"
            bias = "yes" if row.bias else "-"
            lines.append((row.role, str(row.layers), str(row.n), str(row.k), bias, groups, row.why))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i in (0, 6) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


def shapes(model: nn.Module, recipe: Recipe | str = "blockwise", preset: str = "deepseek-v3") -> Shapes:
    """Returns the weights of ``model`` as GEMMs: those of its ``nn.Linear`` layers, converted or not, and of the
    experts that ``convert`` knows. The model may be on the meta device. Modules with equal sizes whose dotted names
    differ only in the layer's number share a row.

    ``shapes(model).to_json()``, written to a file, is a model for the command: ``octile tune --model FILE``, ``octile
    shapes --model FILE --estimate``. recipe, preset: those of ``convert``; a layer that the preset excludes has the
    reason. If no configuration gives the number of experts per token, it is taken as one.
    """
    check_model(model)
    recipe = as_recipe(recipe)
    found: dict[Row, Counter[str]] = defaultdict(Counter)  # rows of one layer, to how often each layer has them
    for name, layer, why in _linear_layers(model, preset):
        place, role, is_expert = _place_of(name)
        groups = 1 if is_expert else 0
        row = Row(role, 1, layer.out_features, layer.in_features, layer.bias is not None, groups, groups, why)
        found[row][place] += 1
    for name, module in model.named_modules():
        for at, row in _experts(module, model):
            place, role, _ = _place_of(f"{name}.{at}" if at else name)
            found[replace(row, role=role)][place] += 1
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    result = Shapes(_name_of(model), recipe.name + (":f32" if recipe.scales == "f32" else ""), model_type=kind)
    result.rows = sorted((_in_all(row, places, model) for row, places in found.items()), key=lambda row: bool(row.why))
    result.heads = _heads(model)
    result.layers = max((row.layers for row in result.rows), default=0)
    result.parameters = sum(parameter.numel() for parameter in model.parameters())
    return result


def _in_all(row: Row, places: Counter[str], model: nn.Module) -> Row:
    """Returns the row of all layers; of experts that are modules of a list it counts those of a layer."""
    if row.groups == 1:
        groups = max(places.values())
        row = replace(row, groups=groups, per_token=min(_per_token(model), groups))
    return replace(row, layers=len(places))


def _linear_layers(model: nn.Module, preset: str):
    """Yields name, layer and why it stays out."""
    layers = layers_of(model, None, preset, Linear)
    for layer, names in layers.names.items():
        why = layers.reasons[layer]
        yield names[0], layer, "" if why is None or isinstance(layer, Linear) else why


def _place_of(name: str) -> tuple[str, str, bool]:
    """Returns the layer that a dotted name lies in, its name there, and whether it is one of a list of experts."""
    words = name.split(".")
    numbers = [i for i, word in enumerate(words) if word.isdecimal()]
    is_expert = bool(numbers) and "expert" in words[numbers[-1] - 1]
    if is_expert:
        del words[numbers.pop()]
    first = numbers[-1] + 1 if numbers else 0
    return ".".join(words[:first]), ".".join(words[first:]) or name, is_expert


def _experts(module: nn.Module, model: nn.Module):
    """Yields the name and the row of each weight of experts that the module holds."""
    if isinstance(module, Experts):
        groups, n, k = module.weight.shape
        yield "", Row("", 1, n, k, False, groups, min(_per_token(model), groups), _why(n, k))
        return
    if isinstance(module, TakenExperts):
        weights = {at: (layer.weight, layer.transposed, layer.rows) for at, layer in module._fp8_weights().items()}
        others = [p for p in module._parameters if p.endswith("_bias")]
    else:
        form = form_of(module)
        if form is None or isinstance(form, str):
            return
        top_k = form.top_k or _per_token(model)
        weights = {at: (module._parameters[at], transposed, top_k) for at, transposed in form.weights.items()}
        others = form.others
    for at, (weight, transposed, rows) in weights.items():
        groups, n, k = _sizes(weight, transposed)
        yield at, Row("", 1, n, k, f"{at}_bias" in others, groups, min(rows, groups), _why(n, k))


def _sizes(weight: torch.Tensor, transposed: bool) -> tuple[int, int, int]:
    groups, rows, cols = weight.shape
    return (groups, cols, rows) if transposed else (groups, rows, cols)


def _why(n: int, k: int) -> str:
    return f"sizes are not multiples of {MULTIPLE}" if n % MULTIPLE or k % MULTIPLE else ""


def _per_token(model: nn.Module) -> int:
    """Returns how many experts a token goes to, as the model's configuration says, or 1."""
    config = getattr(model, "config", None)
    for key in ("num_experts_per_tok", "moe_topk", "moe_k", "top_k"):
        if isinstance(value := getattr(config, key, None), int) and value > 0:
            return value
    return 1


def _heads(model: nn.Module) -> dict[str, int]:
    """Returns the numbers of heads that tensor parallelism divides by."""
    config = getattr(model, "config", None)
    counts = {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads"}
    values = {name: getattr(config, key, None) for name, key in counts.items()}
    return {name: count for name, count in values.items() if isinstance(count, int) and count > 0}


def _name_of(model: nn.Module) -> str:
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__)


def _common(row: Row) -> dict[str, object]:
    fields = {key: value for key, value in asdict(row).items() if key in ("role", "layers", "n", "k", "bias")}
    first = {"role": fields.pop("role"), "layers": fields.pop("layers"), "mtp": 0}
    fields = first | fields | {"parameters": row.parameters}
    if row.groups:
        fields |= {"groups": row.groups, "per_token": row.per_token}
    return fields


def _scale_bytes(row: Row, recipe: str) -> int:
    rows, cols, size = _SCALES[as_recipe(recipe).weight.granularity]
    blocks = (-(-row.n // rows) if rows else 1) * (-(-row.k // cols) if cols else 1)
    return size * blocks
