"""The loaders of a checkpoint: the names that they expect on disk, and the layers that they take in FP8."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping
from os.path import commonprefix

import torch
from torch import nn

from octile._types import refuse
from octile.torch._transformers import check_installed, parts_of
from octile.torch.contents import Choice, blocks_of, first_of, scale_name
from octile.torch.huggingface import EXPERTS

_PLAIN = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def class_of(model: nn.Module) -> type[nn.Module]:
    """Returns the class that a model was made of. fully_shard derives another one from it."""
    return next(c for c in type(model).__mro__ if all(base.__name__ != "FSDPModule" for base in c.__mro__))


def is_of_transformers(model: nn.Module) -> bool:
    """Returns whether from_pretrained() of transformers makes such models."""
    theirs = sys.modules.get("transformers.modeling_utils")
    return theirs is not None and isinstance(model, theirs.PreTrainedModel)


class AsInMemory:
    """The loader of a model that transformers does not know: names on disk are those in memory, and nobody expects
    anything."""

    may_miss: set[str] = set()  #: names that a state need not have

    def check(self, state: Mapping[str, torch.Tensor], choice: Choice) -> None:
        """Raises ValueError if a loader would not find what it needs in the state, or the tensors that FP8 is made
        of are not there."""
        missing = [name for name in choice.fp8 if name not in state]
        if missing:
            raise refuse("model", f"one without {first_of(missing)} in its state", "are layers with a weight")

    def fit(self, state: Mapping[str, torch.Tensor], choice: Choice) -> None:
        """Lets layers stay that the loader leaves as they are for any checkpoint. Raises ValueError if it does not
        agree otherwise on the weights that are FP8."""

    def check_names(self, names: Iterable[str], choice: Choice) -> None:
        """Raises ValueError if the loader finds something else in a file of these names, after ``fit``."""

    def without_tied(self, state: dict[str, torch.Tensor], choice: Choice) -> dict[str, torch.Tensor]:
        """Returns the state without the tensors that the loader makes of the rest."""
        return state

    def on_disk(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns a state, or some tensors of it, with names and shapes as on disk."""
        return dict(state)

    def module_on_disk(self, module: str, state: Mapping[str, torch.Tensor]) -> str:
        """Returns the name of a module whose parameters are those of ``state``."""
        return module


class OfTransformers(AsInMemory):
    """The loader of a model that transformers makes from its class and its config, and fills from a checkpoint."""

    def __init__(self, model: nn.Module) -> None:
        check_installed()
        loading = parts_of(
            "core_model_loading", "WeightRenaming", "WeightConverter", "rename_source_key", "revert_weight_conversion"
        )
        self._revert, self._rename = loading.revert_weight_conversion, loading.rename_source_key
        self._kinds = loading.WeightRenaming, loading.WeightConverter
        mapping = parts_of("conversion_mapping", "get_model_conversion_mapping")
        self._conversions = mapping.get_model_conversion_mapping
        layers = parts_of("integrations.finegrained_fp8", "FP8Linear", "|".join(EXPERTS))
        self._replaced = layers.FP8Linear, *getattr(layers, EXPERTS[0])
        quantizers = parts_of("quantizers.quantizer_finegrained_fp8", "FineGrainedFP8HfQuantizer")
        self._quantizer = quantizers.FineGrainedFP8HfQuantizer
        self._class, self._config = class_of(model), model.config
        self._model = self._empty()
        if getattr(model, "_weight_conversions", None) is not None:  # those of the checkpoint it was loaded from
            self._model._weight_conversions = model._weight_conversions
        self._expected = self._model.state_dict()
        self._tied = dict(self._model.all_tied_weights_keys)
        self._unsaved = set(self._model._keys_to_ignore_on_save or ())
        self.may_miss = self._tied.keys() | self._unsaved

    def _empty(self) -> nn.Module:
        """Returns the model as the loader makes it before it has read anything."""
        try:
            with torch.device("meta"):
                return self._class(copy.deepcopy(self._config))
        except TypeError as error:
            allowed = f"are models whose class is made from a config alone ({error})"
            raise refuse("model", f"a {self._class.__name__}", allowed) from None

    def check(self, state, choice) -> None:
        missing = self._expected.keys() - state.keys() - self.may_miss
        if missing:
            allowed = f"are the layers that {self._class.__name__} has by its config"
            raise refuse("model", f"one without {first_of(missing)}", allowed)
        for name in self._expected.keys() & state.keys():
            wanted, tensor = self._expected[name], state[name]
            if tensor.shape != wanted.shape:
                allowed = f"is {tuple(wanted.shape)}, as {self._class.__name__} has it by its config"
                raise refuse("model", f"one with {name} {tuple(tensor.shape)}", allowed)
            if wanted.is_floating_point() and tensor.dtype not in _PLAIN and name not in choice.codes:
                raise refuse("model", f"one with {name} in {tensor.dtype}", "are weights in bfloat16, float16, float32")
        super().check(state, choice)

    def fit(self, state, choice) -> None:
        takes = self._taken(state, choice, [name for name in choice.kept if name.rpartition(".")[2] == "experts"])
        for parameters in choice.mixtures.values():
            for name in parameters:
                scales = sum(blocks.numel() for blocks in self._scales_on_disk(name, state))
                if takes.get(name) != (state[name].shape, scales):
                    what = f"{name} {tuple(state[name].shape)}"
                    allowed = f"is 'keep' for this model: transformers loads no {what} with scales of 128 x 128 blocks"
                    raise refuse("experts", "fp8", allowed)
        for name, module in list(choice.fp8.items()):
            if name in self._expected and name not in takes:
                choice.keep(module)
        takes = self._taken(state, choice, list(choice.kept)).keys()
        chosen = {name for name in [*choice.fp8, *choice.codes] if name in self._expected}
        for name in sorted(takes ^ chosen):
            kept = "but transformers loads it as it is, by the name of a layer that is not"
            if name in takes:
                kept = "is not, but transformers loads it in FP8"
            raise refuse("model", f"one in which {name} is in FP8, {kept}", "are layers that it loads as written")

    def _scales_on_disk(self, name: str, state: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        parts = self.on_disk({name: as_meta(state[name])}).values()
        return [torch.empty(blocks_of(part), device="meta") for part in parts]

    def _taken(self, state, choice: Choice, kept: list[str]) -> dict[str, tuple[torch.Size, int]]:
        """Returns the parameters that the loader takes in FP8, with their shapes and numbers of scales, if a checkpoint
        names the modules of ``kept`` as those that stay."""
        from transformers import FineGrainedFP8Config

        model = self._empty()
        names = [self.module_on_disk(m, {name: state[name] for name in choice.kept[m] if name in state}) for m in kept]
        quantizer = self._quantizer(FineGrainedFP8Config(modules_to_not_convert=names), pre_quantized=True)
        quantizer.preprocess_model(model)
        self._loading = model, quantizer
        found = {}
        for name, module in model.named_modules():
            if isinstance(module, self._replaced):
                own = dict(module.named_parameters(prefix=name, recurse=False))
                found |= {k: (p.shape, own[scale_name(k)].numel()) for k, p in own.items() if scale_name(k) in own}
        return found

    def check_names(self, names, choice) -> None:
        model, quantizer = self._loading
        conversions = self._conversions(model, None, quantizer)
        mapping = [[c for c in conversions if isinstance(c, kind)] for kind in self._kinds]
        wanted = model.state_dict()
        found = {self._rename(name, *mapping, model.base_model_prefix, wanted)[0] for name in names}
        missing = wanted.keys() - found - set(names) - self.may_miss
        if any(name.startswith(f"{mixture}.") for name in missing for mixture in choice.mixtures):
            allowed = f"is 'keep' for this model: transformers has no names on disk for {first_of(missing)}"
            raise refuse("experts", "fp8", allowed)
        if missing:
            allowed = f"are those for which transformers finds {first_of(missing)} on disk"
            raise refuse("model", f"a {self._class.__name__}", allowed)

    def without_tied(self, state, choice):
        gone = set(self._unsaved)
        for name, source in self._tied.items():
            a, b = state.get(name), state.get(source)
            if a is None or b is None or name in choice.fp8 or source in choice.fp8 or name in choice.codes:
                continue
            if a.device == b.device and (a.data_ptr() == b.data_ptr() or a.equal(b)):
                gone.add(name)
        return {name: tensor for name, tensor in state.items() if name not in gone}

    def on_disk(self, state):
        made = self._revert(self._model, dict(state))
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}

    def module_on_disk(self, module, state):
        if not state:
            return module
        names = self.on_disk({name: as_meta(tensor) for name, tensor in state.items()})
        words = commonprefix([name.split(".")[:-1] for name in names])
        if module.rpartition(".")[2] == "experts" and "experts" in words:  # the prefix of one expert is that expert
            words = words[: len(words) - words[::-1].index("experts")]
        return ".".join(words) or module


def as_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same shape and type without memory."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
