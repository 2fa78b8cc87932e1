"""Writes the block-FP8 checkpoint that transformers, vLLM and SGLang load."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from octile._types import refuse
from octile.torch._arguments import check_model
from octile.torch.functional import quantize
from octile.torch.modules import Linear

_QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def block_fp8_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the state with the weight of every ``octile.torch.Linear`` as ``float8_e4m3fn`` [out, in] and beside it
    ``weight_scale_inv``, float32 [ceil(out / 128), ceil(in / 128)], which multiplies. Everything else stays."""
    check_model(model)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, Linear):
            continue
        key = f"{name}.weight" if name else "weight"
        q = quantize(state[key], granularity="128x128", scales="f32")
        state[key] = q.codes
        columns = -(-module.in_features // 128)
        state[f"{key}_scale_inv"] = q.scales[:, :columns].contiguous()
    return state


def export_hf(model: nn.Module, path: str | Path, shard_bytes: int = 5 * 2**30) -> None:
    """Writes ``model.safetensors`` (in shards above ``shard_bytes``) and, if the model has a ``config`` of
    transformers, ``config.json`` with ``quantization_config``, into the folder ``path``.

    Layers that are no ``octile.torch.Linear`` are named in ``modules_to_not_convert``. Needs the package
    ``safetensors``.
    """
    from safetensors.torch import save_file

    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise refuse("path", str(path), "is a folder or a new name")
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.cpu().contiguous() for name, tensor in block_fp8_state_dict(model).items()}
    shards = _shards(_without_shared(state), shard_bytes)
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _save_shards(shards, folder, save_file)
    config = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        plain = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and not isinstance(m, Linear)]
        text = config.to_dict() | {"quantization_config": _QUANTIZATION | {"modules_to_not_convert": plain}}
        text["architectures"] = [type(model).__name__]
        (folder / "config.json").write_text(json.dumps(text, indent=2, default=str) + "\n")


def _without_shared(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the state with every tensor once; tied weights have the first of their names."""
    seen: dict[int, str] = {}
    for name, tensor in state.items():
        seen.setdefault(tensor.data_ptr() or id(tensor), name)
    return {name: state[name] for name in seen.values()}


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
