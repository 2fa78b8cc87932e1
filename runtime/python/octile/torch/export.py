"""Writes the block-FP8 checkpoint that transformers, vLLM and SGLang load."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import nn

from octile._types import is_integer, one_of, refuse, wrong_type
from octile.torch._arguments import check_model
from octile.torch.contents import blocks_of, choose, encoded, first_of, gather, scale_name, state_of, unwrapped
from octile.torch.loaders import AsInMemory, OfTransformers, as_meta, class_of, is_of_transformers

_QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
# Files of a checkpoint; those of an earlier one are replaced.
_FILES = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def block_fp8_state_dict(
    model: nn.Module,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    *,
    scales: str = "f32",
    layers: str = "converted",
    experts: str = "fp8",
) -> dict[str, torch.Tensor]:
    """Returns the state that ``export_hf`` writes, with names as on disk. Every FP8 weight is ``float8_e4m3fn`` [out,
    in], with ``weight_scale_inv`` beside it, float32 [ceil(out / 128), ceil(in / 128)], which multiplies. Everything
    else stays. The arguments are those of ``export_hf``; for a sharded model all ranks get the whole state, on the
    CPU."""
    return dict(_made(model, state_dict, scales, layers, experts, everywhere=True).tensors)


def export_hf(
    model: nn.Module,
    path: str | Path,
    shard_bytes: int = 5 * 2**30,
    *,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    scales: str = "f32",
    layers: str = "converted",
    experts: str = "fp8",
) -> None:
    """Writes ``model.safetensors`` (in shards above ``shard_bytes``) and, if the model has a ``config`` of
    transformers, ``config.json`` with ``quantization_config``, into the folder ``path``. Needs the package
    ``safetensors``.

    It writes in FP8: layers that ``convert`` made, the experts of transformers' mixtures, and weights that are already
    block-FP8 in memory, with the same codes. Other layers with a matrix are named in ``modules_to_not_convert``, and so
    are converted layers that transformers never loads in FP8. Names and shapes are those of the architecture's
    published checkpoints: each expert has its own tensors.

    state_dict: the values to write, under the model's names in memory; the model itself may be on the meta device. A
    model or state sharded by ``fully_shard`` is gathered: all ranks call this, and the first rank of the mesh writes.
    scales: "f32", or "ue8m0": powers of two stored as float32, with ``scale_fmt`` in the configuration. layers:
    "converted", or "all": also each ``nn.Linear`` that ``convert`` would convert at any size. experts: "fp8", or
    "keep": unchanged.

    Files of an earlier checkpoint in the folder are replaced, other files stay. Raises ValueError for a model without
    FP8 layers, with adapters of peft, or if transformers could not load the result.
    """
    from safetensors.torch import save_file

    if not isinstance(path, str | PathLike):
        raise wrong_type("path", path, "str or os.PathLike")
    if not is_integer(shard_bytes, 1):
        raise refuse("shard_bytes", shard_bytes, "are integers from 1 on")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise refuse("path", str(path), "is a folder or a new name")
    made = _made(model, state_dict, scales, layers, experts, everywhere=False)
    if not made.writes:
        return
    shards = _shards(_of_their_own(made.tensors), shard_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if _FILES.fullmatch(file.name):
            file.unlink()
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _save_shards(shards, folder, save_file)
    config = getattr(unwrapped(model), "config", None)
    if hasattr(config, "to_dict"):
        quantization = _QUANTIZATION | {"modules_to_not_convert": made.kept}
        if scales == "ue8m0":
            quantization["scale_fmt"] = "ue8m0"
        text = config.to_dict() | {"quantization_config": quantization}
        text["architectures"] = [class_of(unwrapped(model)).__name__]
        text.pop("_name_or_path", None)  # where the model was loaded from
        (folder / "config.json").write_text(json.dumps(text, indent=2, sort_keys=True, default=str) + "\n")


@dataclass
class _Made:
    """A checkpoint: its tensors, modules_to_not_convert, and whether this process writes it."""

    tensors: Iterator[tuple[str, torch.Tensor]]
    kept: list[str]
    writes: bool


def _made(model, state_dict, scales: str, layers: str, experts: str, everywhere: bool) -> _Made:
    check_model(model)
    scales = one_of("scales", scales, ("f32", "ue8m0"))
    layers = one_of("layers", layers, ("converted", "all"))
    experts = one_of("experts", experts, ("fp8", "keep"))
    model = unwrapped(model)
    theirs = is_of_transformers(model)
    loader = OfTransformers(model) if theirs else AsInMemory()
    choice = choose(model, layers, experts, theirs)
    state = state_of(model, state_dict, loader.may_miss)
    loader.check(state, choice)
    loader.fit(state, choice)
    inverse_names = set(choice.codes.values())
    meta = {name: as_meta(tensor) for name, tensor in state.items() if name not in inverse_names}
    fp8 = loader.on_disk({name: meta[name] for name in choice.fp8}).keys()
    others = loader.on_disk({name: tensor for name, tensor in meta.items() if name not in choice.fp8}).keys()
    coded = loader.on_disk({name: meta[name] for name in choice.codes}).keys()
    loader.check_names([*fp8, *others, *map(scale_name, [*fp8, *coded])], choice)
    beside = fp8 & others
    if beside:
        what = f"one in which only some of the layers are in FP8 that make {first_of(beside)} on disk"
        raise refuse("model", what, "are all of them, or none")
    kept = {}
    for module, names in choice.kept.items():
        kept[loader.module_on_disk(module, {name: meta[name] for name in names if name in meta})] = None

    gathered = gather(state, everywhere)
    if not gathered.writes and not everywhere:
        return _Made(iter(()), list(kept), False)
    whole = gathered.state
    inverse = {name: whole.pop(scale).float() for name, scale in choice.codes.items()}
    disk = loader.on_disk(loader.without_tied(whole, choice))
    whole_blocks = "are weights whose blocks stay whole on disk"
    try:
        inverse = loader.on_disk(inverse)
    except ValueError as error:  # transformers cannot divide the scales as it divides the weights
        raise refuse("model", f"one with {first_of(inverse)} in FP8", whole_blocks) from error
    for name, scale in inverse.items():
        if tuple(scale.shape) != blocks_of(disk[name]):
            raise refuse("model", f"one with {name} in FP8", whole_blocks)
        if scales == "ue8m0" and not (torch.frexp(scale).mantissa == 0.5).all():
            raise refuse("scales", scales, f"is 'f32', because {name} is in FP8 with other scales")
    tensors = encoded(disk, set(fp8), inverse, scales, gathered.device)
    return _Made(tensors, list(kept), gathered.writes)


def _of_their_own(tensors: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Returns the tensors on the CPU, each contiguous in memory that no other one has."""
    made: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors:
        tensor = tensor.cpu().contiguous()
        memory = tensor.untyped_storage()
        if memory.data_ptr() in seen or memory.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        made[name] = tensor
    return made


def _shards(state: dict[str, torch.Tensor], limit: int) -> list[dict[str, torch.Tensor]]:
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in state.items():
        if size + tensor.nbytes > limit and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _save_shards(shards, folder: Path, save_file) -> None:
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(t.nbytes for shard in shards for t in shard.values())},
        "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
