"""Common parts of the FP8 layers: a weight whose copies are shared, a recipe, and switches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from octile._types import is_integer, refuse, wrong_type
from octile.torch.calls import FEW, FP8, NEVER, PAUSED, REASONS, SCHEDULED, SWITCHED, UNALIGNED, no_calls
from octile.torch.primary_state import complete
from octile.torch.held_weight import HeldWeight
from octile.torch.recipes import Recipe
from octile.torch.scaling import Scaling
from octile.torch.schedule import Switched
from octile.torch.watch import Watch
from octile.torch.weights import RULE, Rule, follow, let_swap, obey, replaced, weight_changed

MULTIPLE = 16  # of in_features and out_features


def check_features(**sizes: int) -> None:
    """Raises ValueError for a size that is not a multiple of 16 above 0."""
    for name, value in sizes.items():
        if not is_integer(value, 1) or value % MULTIPLE:
            raise refuse(name, value, "are multiples of 16 above 0")


def local_of(parameter: nn.Parameter | None) -> torch.Tensor | None:
    """Returns this rank's part of a parameter that ranks divide, and others as they are."""
    return getattr(parameter, "_local_tensor", parameter)


class Layer(Switched):
    """A layer with a parameter ``weight`` that is quantised once between two changes of its contents."""

    weight: nn.Parameter
    transposed = False  #: the weight is [experts, in, out]
    recipe: Recipe
    _code: int | None  # None: never in FP8
    _scaling: Scaling | None  # of recipe "delayed"
    _watch: Watch | None  # set by a Sentry
    _rule: Rule  # of the weight's copies
    _calls: list[int]  # see octile.torch.calls
    of_a_call = "tokens"  #: what ``least_now`` counts
    _sharding: Any  # of octile.torch.distributed, which is told of other weights; or None

    def _set_up(self, recipe: Recipe, aligned: bool, experts: int = 1) -> None:
        # Not by nn.Module's __setattr__, which needs its __init__ to have run.
        self.__dict__["recipe"] = recipe
        self.__dict__["fp8"] = True
        self.__dict__["_is_scheduled"] = False
        self.__dict__["_by_convert"] = False  # convert may give it another recipe
        self.__dict__["_code"] = recipe.code if aligned else None
        self.__dict__["_scaling"] = Scaling(recipe, experts) if aligned and recipe.is_delayed else None
        self.__dict__["_watch"] = None
        self.__dict__["_rule"] = RULE
        self.__dict__["_sharding"] = None
        self.__dict__["_calls"] = no_calls()

    def _set_up_again(self, recipe: Recipe, experts: int = 1) -> None:
        """Begins anew with a recipe, and stays switched, watched and kept as it was."""
        kept = {name: self.__dict__[name] for name in ("fp8", "_is_scheduled", "_by_convert", "_watch", "_rule")}
        self._set_up(recipe, self._code is not None, experts)
        self.__dict__.update(kept)

    def _is_plain(self) -> bool:
        """Returns whether a call now computes without FP8, for all that is switched."""
        return self._code is None or not self.fp8 or (self._watch is not None and self._watch.paused)

    def _call_state(self, x: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """Returns the recipe's code and the scaling state of a call with input x."""
        if not torch.compiler.is_compiling():  # which would compile again for another count
            self._calls[FP8] += 1
            follow(self.weight)
        if self._scaling is None:
            return self._code, None
        if not self.training:  # nothing that is recorded later would mend a scale
            return self.recipe.current_code, self._scaling.on(x.device)
        self._scaling.check_capture(x.device)
        return self._scaling.code, self._scaling.on(x.device)

    def least_now(self) -> int:
        """Returns how many tokens, or rows of experts, a call has at least that is in FP8."""
        return 0

    def _why_plain(self) -> int:
        """Returns why a call now computes without FP8: ``FEW`` if nothing else is the reason."""
        if self._code is None:
            return UNALIGNED
        if not self.fp8:
            return SCHEDULED if self._is_scheduled else SWITCHED
        return PAUSED if self._watch is not None and self._watch.paused else FEW

    def _note_plain(self) -> None:
        """Says that a call computes without FP8."""
        if self._watch is not None:
            self._watch.was_plain = True
        if not torch.compiler.is_compiling():
            self._calls[self._why_plain()] += 1

    def how_now(self) -> str:
        """Returns how a call computes now: "FP8", from how many tokens on, or why without."""
        if (reason := self._why_plain()) != FEW:
            return f"without FP8: {REASONS[reason]}"
        least = self.least_now()
        if least >= NEVER:
            return f"without FP8 in {'train' if self.training else 'eval'}() mode"
        return "FP8" if least == 0 else f"FP8 from {least} {self.of_a_call} on"

    def _recipe_text(self) -> str:
        scales = "" if self.recipe.scales == "pow2" else f", scales={self.recipe.scales}"
        scales += "".join(f", {which}=bf16" for which in ("dx", "dw") if getattr(self.recipe, which) == "bf16")
        held = ", weight held in FP8" if isinstance(self.weight, HeldWeight) else ""
        now = self.how_now()
        now = "" if now == "FP8" or self._code is None else f", {now}"
        return f"recipe={self.recipe.name if self._code is not None else 'none'}{scales}{held}{now}"

    def set_rule(self, **changes) -> None:
        """Lets the copies of the weight be used by another rule, with these fields."""
        self.__dict__["_rule"] = self._rule._replace(**changes)
        obey(self.weight, self._rule)

    def __prepare_scriptable__(self):
        # torch.jit.script asks every module for an object to compile instead.
        raise wrong_type("model", self, "a module that TorchScript compiles; use torch.compile or torch.export")

    def __getstate__(self) -> dict:
        own = {"_watch": None, "_sharding": None, "_calls": no_calls()}
        return self.__dict__ | own | {"_rule": self._rule._replace(trusted=False)}

    def _weight_is(self, weight: nn.Parameter, before: nn.Parameter | None = None) -> None:
        if self._sharding is not None and self._sharding.placed(self, weight):
            return
        if isinstance(before, HeldWeight) and hasattr(weight, "to_local"):
            allowed = "is a model before primary_fp8 or freeze_to_fp8: weights held in FP8 are not sharded"
            raise refuse("model", f"one with a weight {tuple(before.shape)} held in FP8", allowed)
        replaced(before, weight, self._rule)
        if self._scaling is not None:
            self._scaling.weight_is(self, weight, before)

    def train(self, mode: bool = True):
        # Averaged weights are swapped in and out around evaluation, often through .data.
        if mode != self.training:
            weight_changed(self.weight)
            if self._sharding is not None:
                self._sharding.weights_changed()
        return super().train(mode)


class WeightOwner(nn.Module):
    """A module that has weights of FP8 layers among its parameters. It tells the layers where a weight becomes another
    tensor, or moves."""

    def _fp8_weights(self) -> dict[str, Layer]:
        """Returns the layers by the names of the parameters that are their weights."""
        return {"weight": self}  # type: ignore[dict-item]

    def __setattr__(self, name: str, value: object) -> None:
        # FSDP2 replaces parameters by assignment only in modules with a __setattr__ of their own, and does so for every
        # pass, so it is not to be checked as nn.Module checks it.
        if name in self.__dict__.get("_parameters", ()) and isinstance(value, nn.Parameter):
            before, self._parameters[name] = self._parameters[name], value
            if (layer := self._fp8_weights().get(name)) is not None:
                layer._weight_is(value, before)
        else:
            super().__setattr__(name, value)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        before = self._parameters.get(name)
        if hasattr(param, "to_local"):
            layer = self._fp8_weights().get(name)
            if layer is not None and layer._sharding is not None:
                allowed = (
                    "is a plain tensor: after shard_fp8 fully_shard shards it, not SimpleFSDP or parallelize_module"
                )
                raise refuse(name, type(param).__name__, allowed)
            allowed = (
                "is a plain tensor: filter the layers that PyTorch's styles split, or take octile.torch.distributed's"
            )
            raise refuse(name, type(param).__name__, allowed)
        super().register_parameter(name, param)
        if param is not None and (layer := self._fp8_weights().get(name)) is not None:
            layer._weight_is(param, before)

    def _held(self) -> dict[str, HeldWeight]:
        """Returns the weights that ``primary_fp8`` holds in FP8, by their names."""
        weights = {name: layer.weight for name, layer in self._fp8_weights().items()}
        return {name: weight for name, weight in weights.items() if isinstance(weight, HeldWeight)}

    def _masters_are_out(self) -> None:
        """Others have, or had, the memory of sharded masters, such as a checkpoint that is read into it."""
        for layer in self._fp8_weights().values():
            if layer._sharding is not None:
                layer._sharding.weights_changed()

    def _apply(self, fn, recurse=True):
        held = self._held()
        others = [layer for name, layer in self._fp8_weights().items() if name not in held]
        for layer in others:
            let_swap(layer.weight)
        self._parameters.update(dict.fromkeys(held))
        try:
            super()._apply(fn, recurse)
            for weight in held.values():
                weight.move(fn)
        finally:
            self._parameters.update(held)
        for layer in others:
            if layer.weight is not None:
                layer._weight_is(layer.weight)
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self._masters_are_out()
        for name, layer in self._fp8_weights().items():
            if layer._sharding is not None and not keep_vars:
                layer._sharding.make_plain(destination[prefix + name])
        if not keep_vars:
            for name, weight in self._held().items():
                destination.update(weight.entries(prefix + name))

    def _load_from_state_dict(self, state_dict, prefix, metadata, *others) -> None:
        held, layers = self._held(), self._fp8_weights()
        for layer in layers.values():
            let_swap(layer.weight)
        if held:
            # To assign a plain parameter would leave the optimizer with the old one.
            metadata = metadata | {"assign_to_params_buffers": False}
        with self._loading_codes(state_dict, prefix, *others):
            super()._load_from_state_dict(state_dict, prefix, metadata, *others)
        self._masters_are_out()
        for name, layer in layers.items():
            if name in held:
                if layer.weight.master is not None:
                    complete(layer.weight)
                continue
            if torch.__future__.get_swap_module_params_on_conversion() or layer._sharding is not None:
                layer._weight_is(layer.weight)
            weight_changed(layer.weight)
            if layer._scaling is not None and prefix + name in state_dict:
                layer._scaling.begin_anew()

    @contextmanager
    def _loading_codes(self, state_dict, prefix: str, strict: bool, missing: list, unexpected: list, errors: list):
        """Loads weights without a master, which checkpoints have as codes and scales, and hides them meanwhile."""
        frozen = {name: weight for name, weight in self._held().items() if weight.master is None}
        for name, weight in frozen.items():
            missing += [key for key in weight.entries(prefix + name) if strict and key not in state_dict]
            if (wrong := weight.load(prefix + name, state_dict)) is not None:
                errors.append(wrong)
            self._parameters[name] = None
        try:
            yield
        finally:
            self._parameters.update(frozen)

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        for layer in self._fp8_weights().values():
            layer._weight_is(layer.weight)
