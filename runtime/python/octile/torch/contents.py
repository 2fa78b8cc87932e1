"""The contents of a block-FP8 checkpoint of a model: which tensors are in FP8, and where their values come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from octile._types import ceil_div, refuse, wrong_type
from octile.torch._arguments import check_tensor
from octile.torch.functional import quantize
from octile.torch.layer import MULTIPLE
from octile.torch.modules import Experts, Linear
from octile.torch.held_weight import HeldWeight
from octile.torch.presets import PRESETS

BLOCK = 128
#: Parameters of the experts that transformers loads in FP8.
PROJECTIONS = {"gate_up_proj", "up_proj", "down_proj"}
# Parts of names that torch.compile and checkpoint_wrapper put in front of a module's own.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


@dataclass
class Choice:
    """The weights that are in FP8. All names are those in memory."""

    fp8: dict[str, str] = field(default_factory=dict)  #: parameters to quantise, and the module of each
    codes: dict[str, str] = field(default_factory=dict)  #: parameters that are FP8 codes, and their scales
    kept: dict[str, list[str]] = field(default_factory=dict)  #: modules that stay as they are, and their parameters
    mixtures: dict[str, list[str]] = field(default_factory=dict)  #: experts of transformers among ``fp8``

    def keep(self, module: str) -> None:
        """Lets a module that was to be quantised stay as it is."""
        self.kept[module] = [name for name, owner in self.fp8.items() if owner == module]
        self.fp8 = {name: owner for name, owner in self.fp8.items() if owner != module}


def choose(model: nn.Module, layers: str, experts: str, is_of_transformers: bool) -> Choice:
    """Returns what the arguments of ``export_hf`` say of a model. Raises ValueError if none of its layers is FP8."""
    choice = Choice()
    others = [m for m in model.modules() if not isinstance(m, nn.Linear | Experts)]
    shared = {id(p) for m in others for p in m.parameters(recurse=False)}
    mixture = None
    for full, module in model.named_modules(remove_duplicate=False):
        name = plain_name(full)
        if mixture is not None and name.startswith(mixture + "."):
            continue
        own = dict(module.named_parameters(recurse=False))
        held = {key for key, p in own.items() if isinstance(p, HeldWeight) and p.master is None}
        choice.codes.update({_join(name, key): _join(name, scale_name(key)) for key in held})
        matrices = {key: p for key, p in own.items() if p.dim() >= 2 and key not in held}
        codes = [key for key, p in matrices.items() if p.dtype == torch.float8_e4m3fn]
        if codes:
            _check_codes(name, module, own, codes)
            choice.codes.update({_join(name, key): _join(name, scale_name(key)) for key in codes})
        elif held:
            continue
        elif is_of_transformers and name.rpartition(".")[2] == "experts":
            mixture = name
            _choose_mixture(choice, name, module, experts)
        elif isinstance(module, Experts) and experts == "fp8":
            choice.fp8[_join(name, "weight")] = name
        elif _is_fp8_linear(name, module, layers) and id(module.weight) not in shared:
            choice.fp8[_join(name, "weight")] = name
        elif matrices and not isinstance(module, nn.Embedding) and not _has_layers(module):
            choice.kept[name] = [_join(name, key) for key in matrices]
    found = [*choice.codes, *(name for name, owner in choice.fp8.items() if owner not in choice.mixtures)]
    if not found and (layers == "converted" or not choice.fp8):
        allowed = "is one with FP8 layers: call octile.torch.convert() first, or pass layers='all'"
        if layers == "all":
            allowed = "is one with linear layers whose sizes are multiples of 16"
        raise refuse("model", type(model).__name__, allowed)
    return choice


def _has_layers(module: nn.Module) -> bool:
    """Returns whether linear layers are inside a module, so that naming it would name them too."""
    return any(isinstance(m, nn.Linear | Experts) for m in module.modules() if m is not module)


def _choose_mixture(choice: Choice, name: str, module: nn.Module, experts: str) -> None:
    """Chooses for the experts of a layer of transformers, which its loader replaces as a whole."""
    inside = {_join(name, plain_name(key)): p for key, p in module.named_parameters()}
    if experts == "keep":
        choice.kept[name] = [key for key, p in inside.items() if p.dim() >= 2]
        return
    strange = [key for key, p in inside.items() if key.rpartition(".")[2] not in PROJECTIONS or p.dim() != 3]
    if strange:
        allowed = f"is 'keep' for this model: transformers loads no {first_of(strange)} in FP8"
        raise refuse("experts", experts, allowed)
    choice.mixtures[name] = list(inside)
    choice.fp8.update(dict.fromkeys(inside, name))


def _is_fp8_linear(name: str, module: nn.Module, layers: str) -> bool:
    """Returns whether a layer is written in FP8, if no other kind of module has its weight."""
    if isinstance(module, Linear):
        return module._code is not None
    if layers != "all" or type(module) is not nn.Linear:
        return False
    aligned = module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0
    return aligned and not any(PRESETS["deepseek-v3"].fullmatch(word) for word in name.split("."))


def _check_codes(name: str, module: nn.Module, own: Mapping[str, nn.Parameter], codes: list[str]) -> None:
    """Raises ValueError for FP8 weights that are not those of a block-FP8 checkpoint."""
    for key in codes:
        scales = own.get(scale_name(key))
        if scales is None or tuple(scales.shape) != blocks_of(own[key]):
            raise refuse("model", f"{_join(name, key)} in FP8", "are FP8 weights with scales of 128 x 128 blocks")
    if getattr(module, "activation_scheme", "dynamic") != "dynamic":
        raise refuse("model", f"{name} with static activation scales", "are FP8 layers with dynamic ones")


def blocks_of(weight: torch.Tensor) -> tuple[int, ...]:
    """Returns the shape of a weight's scales."""
    *experts, rows, cols = weight.shape
    return *experts, ceil_div(rows, BLOCK), ceil_div(cols, BLOCK)


# ---- names


def scale_name(name: str) -> str:
    """Returns the name of a weight's scales."""
    return name + "_scale_inv"


def _join(module: str, key: str) -> str:
    return f"{module}.{key}" if module else key


def plain_name(name: str) -> str:
    """Returns a name without the parts that wrappers of torch put into it."""
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)


def first_of(names: Iterable[str]) -> str:
    """Returns the first of some names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first} (and {len(more)} more)" if more else first


# ---- values


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the module inside torch.compile and data parallelism. Raises ValueError if it has wrappers whose state is
    not that of the model."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            break
    for name, module in model.named_modules():
        if any(base.__name__ == "FullyShardedDataParallel" for base in type(module).__mro__):
            allowed = "are models of fully_shard, and plain ones with state_dict="
            raise refuse("model", "one with FullyShardedDataParallel", allowed)
        if type(module).__module__.partition(".")[0] == "peft":
            what = f"one with an adapter of peft ({name})" if name else f"a {type(module).__name__} of peft"
            raise refuse("model", what, "is one without adapters: take what peft's merge_and_unload() returns")
    return model


def state_of(model: nn.Module, given: Mapping[str, torch.Tensor] | None, may_miss: set[str]) -> dict[str, torch.Tensor]:
    """Returns the state of the model, or the given one if it is a state of this model."""
    own = {plain_name(name): tensor.detach() for name, tensor in model.state_dict().items()}
    if given is None:
        unreal = [name for name, tensor in own.items() if tensor.is_meta]
        if unreal:
            allowed = "is one whose weights are in memory, or another with state_dict="
            raise refuse("model", f"one with {first_of(unreal)} on the meta device", allowed)
        return own
    if not isinstance(given, Mapping):
        raise wrong_type("state_dict", given, "a dict of names and tensors, or None")
    state = {plain_name(name): tensor for name, tensor in given.items()}
    for name, tensor in state.items():
        check_tensor(tensor, f"state_dict[{name!r}]")
        if name not in own:
            raise refuse("state_dict", f"one with {name}", "are the names of the model's own state")
        if tensor.shape != own[name].shape or tensor.is_meta:
            what = f"one with {name} {tuple(tensor.shape)}{' on the meta device' if tensor.is_meta else ''}"
            raise refuse("state_dict", what, f"is {tuple(own[name].shape)}, in memory")
    missing = own.keys() - state.keys() - may_miss
    if missing:
        raise refuse("state_dict", f"one without {first_of(missing)}", "is the whole state of the model")
    return {name: state[name].detach() for name in own if name in state}


@dataclass
class Gathered:
    """A state without shards."""

    state: dict[str, torch.Tensor]
    device: torch.device | None  #: where the shards are, if there were any: what was gathered is on the CPU
    writes: bool  #: whether this process writes it


def gather(state: Mapping[str, torch.Tensor], everywhere: bool) -> Gathered:
    """Returns the whole tensors of a state. All ranks of a sharded state call it. everywhere: all of them keep the
    result, not the first alone."""
    shards = [tensor for tensor in state.values() if hasattr(tensor, "full_tensor")]
    if not shards:
        return Gathered(dict(state), None, True)
    writes = torch.distributed.get_rank() == int(shards[0].device_mesh.mesh.flatten()[0])
    whole = {}
    for name, tensor in state.items():
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.full_tensor()
            if writes or everywhere:
                whole[name] = tensor.cpu()
        else:
            whole[name] = tensor
    return Gathered(whole, shards[0].to_local().device, writes)


def encoded(
    state: Mapping[str, torch.Tensor], fp8: set[str], codes: Mapping[str, torch.Tensor], scales: str,
    device: torch.device | None,
) -> Iterator[tuple[str, torch.Tensor]]:  # fmt: skip
    """Yields the tensors of a checkpoint, made one after the other. Names are those on disk.

    fp8: what is quantised, on ``device`` unless that is None. codes: the scales of tensors that are FP8 already.
    """
    for name, tensor in state.items():
        if name in fp8:
            weight = tensor if device is None else tensor.to(device)
            made = encode(weight, "f32" if scales == "f32" else "pow2")
            for key, part in zip((name, scale_name(name)), made, strict=True):
                yield key, part.to(tensor.device)
        else:
            yield name, tensor
            if name in codes:
                yield scale_name(name), codes[name]


def encode(weight: torch.Tensor, scales: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns E4M3 codes and scales of [out, in], or of every matrix of [experts, out, in]."""
    if weight.dim() == 3:
        codes, inverse = zip(*(encode(matrix, scales) for matrix in weight), strict=True)
        return torch.stack([c.view(torch.uint8) for c in codes]).view(codes[0].dtype), torch.stack(inverse)
    q = quantize(weight, granularity="128x128", scales=scales)
    return q.codes, q.scales[:, : ceil_div(weight.shape[1], BLOCK)].contiguous()
