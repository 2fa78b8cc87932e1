"""``unconvert``: undoes what ``convert`` did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import nn

from octile._types import refuse
from octile.torch._arguments import check_model
from octile.torch.conversion import check_order, restore_fast_paths
from octile.torch.expert_modules import TakenExperts
from octile.torch.freezing import become
from octile.torch.frozen import FrozenLinear, FrozenWeight
from octile.torch.gated_modules import FusedMlp
from octile.torch.layer import Layer
from octile.torch.modules import Experts, Linear
from octile.torch.names import by_value, pattern_of, shortened
from octile.torch.norms import FusedNorm
from octile.torch.held_weight import held
from octile.torch.specialised import restore
from octile.torch.status import left
from octile.torch.transposed import TransposedLinear
from octile.torch.weights import forget


@dataclass
class Unconverted:
    """The result of ``unconvert``, by the names of modules."""

    layers: list[str] = field(default_factory=list)  #: that are ``nn.Linear`` again, or transformers' ``Conv1D``
    experts: list[str] = field(default_factory=list)  #: of other libraries, that compute as these again
    fused: list[str] = field(default_factory=list)  #: MLPs and norms that compute by their own forward again
    skipped: dict[str, str] = field(default_factory=dict)  #: other FP8 modules, to the reason

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers are nn.Linear again, {len(self.skipped)} FP8 modules stay"]
        for what, names in (("nn.Linear", self.layers), ("experts", self.experts), ("not fused", self.fused)):
            if names:
                lines.append(f"  {what}: {shortened(names, Counter(map(pattern_of, names)))}")
        patterns = Counter(map(pattern_of, self.skipped))
        names_by_reason = by_value(self.skipped).items()
        return "\n".join(lines + [f"  {reason}: {shortened(names, patterns)}" for reason, names in names_by_reason])


def unconvert(model: nn.Module) -> Unconverted:
    """Turns each ``octile.torch.Linear`` of ``model`` into an ``nn.Linear`` again, in place, with its parameters,
    buffers, hooks and attributes. Experts of other libraries, MLPs and norms that ``convert`` changed are restored. FP8
    copies and scales of recipe "delayed" are freed.

    ``FrozenLinear`` and ``Experts`` stay, and the result says so. Raises ValueError, and changes nothing, if
    ``primary_fp8`` holds weights, if ``shard_fp8``, FSDP, tensor or expert parallelism divides them over ranks, if a
    sentry watches the model, or if ``model`` is itself a ``Linear``.
    """
    check_model(model)
    if isinstance(model, Linear):
        raise refuse("model", type(model).__name__, "is a module that contains such layers")
    check_order(model, "unconvert")
    for name, module in model.named_modules():
        if (reason := _why_not(module)) is not None:
            raise refuse("model", f"one whose {name!r} {reason[0]}", reason[1])
    done = Unconverted()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, FusedMlp | FusedNorm):
            restore(module)
            done.fused.append(name)
        if isinstance(module, FrozenLinear):
            done.skipped[name] = "is frozen in FP8: thaw_from_fp8 gives nn.Linear back"
        elif isinstance(module, Experts | TakenExperts) and any(held(w) for w in module._parameters.values()):
            done.skipped[name] = "are frozen in FP8: thaw_from_fp8 gives them back"
        elif isinstance(module, Experts):
            done.skipped[name] = "is an octile.torch.Experts, which was made as one"
        elif isinstance(module, TakenExperts):
            for layer in module._fp8_weights().values():
                forget(layer.weight)
            module._leave()
            done.experts.append(name)
        elif isinstance(module, TransposedLinear):
            module._leave()
            left[module] = "unconvert gave it back"
            done.layers.append(name)
        elif isinstance(module, Linear):
            forget(module.weight)
            become(nn.Linear, module)
            left[module] = "unconvert gave it back"
            done.layers.append(name)
    restore_fast_paths(model)
    return done


def _why_not(module: nn.Module) -> tuple[str, str] | None:
    """Returns why a module cannot be given back, and what is allowed; or None."""
    if isinstance(module, TakenExperts) and module.spread is not None:
        return "is spread over ranks", "is a model before expert_parallel"
    if not isinstance(module, Layer):
        return None
    if isinstance(module.weight, FrozenWeight):
        return None
    if held(module.weight):
        return "has its weight held in FP8", "is a model before primary_fp8"
    if module._sharding is not None:
        return "has a weight that shard_fp8 sends", "is a model before shard_fp8"
    if hasattr(module.weight, "to_local") or (isinstance(module, Linear) and type(module) is not Linear):
        return "is divided over ranks", "is a model before parallelize_module and fully_shard"
    if module._watch is not None:
        return "is watched by a sentry", "is a model without one: call its remove() first"
    return None
