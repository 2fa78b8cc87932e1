"""``status``: which layers of a model compute in FP8, which calls did, and why others did not."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field

from torch import nn

from octile.torch._arguments import check_flag, check_model
from octile.torch.calls import FP8, REASONS, no_calls
from octile.torch.frozen import FrozenLinear
from octile.torch.layer import Layer, WeightOwner
from octile.torch.names import pattern_of, shortened

#: Layers that ``convert`` left, to the reason.
left: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class LayerStatus:
    """The present state of a layer, and counts of its calls."""

    now: str  #: how a call computes now: "FP8", "FP8 from 2048 tokens on", "without FP8: ..."
    recipe: str | None = None  #: None if it is not an FP8 layer, or frozen
    fp8: int = 0  #: calls in FP8
    plain: dict[str, int] = field(default_factory=dict)  #: calls without FP8, by the reason


@dataclass
class Status:
    """The linear layers and experts of a model by their names; see ``octile.torch.status``."""

    layers: dict[str, LayerStatus]

    def __str__(self) -> str:
        of_fp8 = [layer for layer in self.layers.values() if layer.recipe is not None]
        plain = sum(sum(layer.plain.values()) for layer in of_fp8)
        fp8 = sum(layer.fp8 for layer in of_fp8)
        lines = [f"{len(of_fp8)} FP8 layers: {fp8} calls in FP8, {plain} without"]
        patterns = Counter(map(pattern_of, self.layers))
        names_by_text: dict[str, list[str]] = {}
        for name, layer in self.layers.items():
            names_by_text.setdefault(_text_of(layer), []).append(name)
        return "\n".join(lines + [f"  {text}: {shortened(names, patterns)}" for text, names in names_by_text.items()])


def _text_of(layer: LayerStatus) -> str:
    if layer.recipe is None:
        return layer.now
    calls = [f"{layer.fp8} calls in FP8"] if layer.fp8 or not layer.plain else []
    calls += [f"{count} without ({reason})" for reason, count in layer.plain.items()]
    return f"{layer.recipe}, now {layer.now}; each {', '.join(calls)}"


def status(model: nn.Module, reset: bool = False) -> Status:
    """Returns which layers of ``model`` compute in FP8 now, how many of their calls did, and why others did not.

    >>> print(octile.torch.status(model))
    96 FP8 layers: 384 calls in FP8, 96 without
      blockwise, now FP8 from 2048 tokens on; each 4 calls in FP8, 1 without (fewer tokens than ...): layers.*.q_proj
      not converted, output layer by its name 'lm_head' (preset deepseek-v3): lm_head

    It counts forward calls of eager code since the layer was converted, or since the last call with ``reset=True``,
    including recomputed calls of activation checkpointing. Compiled code and replays of CUDA graphs are not counted:
    for them ``LayerStatus.now`` says how a call computes. Autocast, dtypes and ``torch.func`` do not affect whether a
    call uses FP8. ``nn.Linear`` layers are listed with the reason of the last ``convert``. Copies of a layer begin at
    0.
    """
    check_model(model)
    check_flag(reset, "reset")
    found: dict[str, LayerStatus] = {}
    for name, module in model.named_modules():
        if isinstance(module, Layer):
            found[name] = _of_layer(module, reset)
        elif isinstance(module, FrozenLinear):
            found[name] = LayerStatus("FP8, with a frozen weight; its calls are not counted")
        elif (isinstance(module, nn.Linear) or module in left) and not isinstance(module, WeightOwner):
            reason = left.get(module, "convert was not called with it")
            found[name] = LayerStatus(f"not converted, {reason}")
    return Status(found)


def _of_layer(layer: Layer, reset: bool) -> LayerStatus:
    result = LayerStatus(layer.how_now(), layer.recipe.text, layer._calls[FP8], _plain(layer))
    if reset:
        layer._calls[:] = no_calls()
    return result


def _plain(layer: Layer) -> dict[str, int]:
    return {text: layer._calls[reason] for reason, text in REASONS.items() if layer._calls[reason]}
