"""``inspect`` and ``watching``: what quantising weights, activations and gradients to FP8 loses, before a model has any
FP8 layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from octile._inspection import (
    ROLES,
    Inspection,
    Matrix,
    Tensor,
    add_matrix,
    check_sample,
    inspection_of,
    names_of,
    wanted,
)
from octile._types import is_integer, one_of, refuse, wrong_type
from octile.torch._arguments import check_model, check_tensor
from octile.torch.presets import PRESETS, Places
from octile.torch.transposed import conv1d

_WORDS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp32"}


def inspect(
    model_or_tensor: nn.Module | torch.Tensor,
    recipes: str | Iterable[str] = "blockwise",
    role: str = "weight",
    sample: float = 1.0,
    preset: str = "deepseek-v3",
) -> Inspection:
    """Measures the error of quantising the weights of a model, or a tensor, to FP8: the numbers of ``octile inspect``.

    >>> print(octile.torch.inspect(model, ["blockwise", "mxfp8"]))

    A model's weights with two and three dimensions (experts) are measured, except those that ``preset`` excludes by
    name, as in ``convert``, and those of convolutions. A parametrised weight (``weight_norm``) is measured as the layer
    uses it. A tensor is bfloat16, float16, float32 or float64 (rounded to float32), and its last two
    dimensions are a matrix. Weights [in, out] of transformers' ``Conv1D`` and of experts are measured as [out, in];
    their blocks run down columns. recipes: names of recipes. role: the recipe's type to use, of "weight", "activation"
    or "gradient". sample: the share of each matrix to measure. GPU tensors are copied to the host one by one and
    measured there. Raises ValueError and TypeError; NotImplementedError for a tensor on the meta device.
    """
    if isinstance(model_or_tensor, torch.Tensor):
        _check_initialized(model_or_tensor, "tensor")
        check_tensor(model_or_tensor, "tensor")
        tensor = model_or_tensor.detach()
        if tensor.dim() < 2 or tensor.numel() == 0:
            raise refuse("tensor.shape", tuple(tensor.shape), "is at least two dimensions, none of which is 0")
        if tensor.dtype not in _WORDS:
            allowed = "are torch.bfloat16, float16, float32 and float64"
            if str(tensor.dtype).startswith("torch.float8"):
                allowed += "; of a tensor in FP8, its codes times its scales in one of these"
            raise refuse("tensor.dtype", tensor.dtype, allowed)
        named = [("tensor", tensor, False)]
    elif isinstance(model_or_tensor, nn.Module):
        named = _weights(model_or_tensor, preset)
    else:
        raise wrong_type("model_or_tensor", model_or_tensor, "torch.nn.Module or torch.Tensor")
    tensors = ((Tensor(name, tuple(one.shape), transposed), lambda one=one, flip=transposed: _matrices(one, flip))
               for name, one, transposed in named)
    return inspection_of(tensors, recipes, role, sample)


_CONVOLUTIONS = nn.modules.conv._ConvNd


def _weights(model: nn.Module, preset: str) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Gives the weights that the command takes of a checkpoint (Collector::subject_of in tools/inspect/subjects.cc),
    and whether they are [in, out]. Each lives as long as the next one is not asked for."""
    places = Places(model, one_of("preset", preset, PRESETS))
    tables = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    for path, module in model.named_modules():
        is_in_parametrization = "parametrizations" in path.split(".")
        if is_in_parametrization or isinstance(module, _CONVOLUTIONS) or places.reason_by_name(path) is not None:
            continue
        for name, weight in _tensors_of(module):
            whole = f"{path}.{name}" if path else name
            if id(weight) not in tables and _is_weight(whole, weight):
                tables.add(id(weight))  # once, if several modules share it
                yield whole, weight.detach(), _is_transposed(module, name)


def _check_initialized(tensor: torch.Tensor, name: str) -> None:
    """Raises ValueError for a weight of a lazy layer that was never called."""
    if nn.parameter.is_lazy(tensor):
        raise refuse(name, type(tensor).__name__, "is a tensor with elements: call the model once")


def _is_weight(name: str, tensor: torch.Tensor) -> bool:
    _check_initialized(tensor, name)
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.dim() not in (2, 3) or tensor.dtype not in _WORDS or tensor.numel() == 0 or name.endswith("bias"):
        return False
    return tensor.dim() == 2 or "experts" in name or 1 not in tensor.shape[1:]  # else a kernel of a convolution


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Gives a module's parameters, and in the place of those that a weight is computed of that weight."""
    # torch.nn.utils.weight_norm, spectral_norm and prune: weight_g, weight_v or weight_orig make the attribute weight.
    attributes = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
    made = [name for name in attributes if any(each.startswith(name + "_") for each in module._parameters)]
    for name, parameter in module._parameters.items():
        if parameter is not None and not any(name.startswith(each + "_") for each in made):
            yield name, parameter
    for name in made:
        yield name, attributes[name]
    parametrizations = module._modules.get("parametrizations") or {}
    for name in parametrizations:
        yield name, _parametrized(module, name, parametrizations[name])


@torch.no_grad()
def _parametrized(module: nn.Module, name: str, parametrization: nn.Module) -> torch.Tensor:
    """Returns a computed weight. Nothing of the module changes: spectral_norm takes a step in a module that trains."""
    training = [each for each in parametrization.modules() if each.training]
    try:
        for each in training:
            each.training = False
        return getattr(module, name)
    finally:
        for each in training:
            each.training = True


def _is_transposed(module: nn.Module, name: str) -> bool:
    """Returns whether a module's weight is [in, out]: that of ``Conv1D``, and those of experts that say so, or of which
    gate_up_proj is twice as wide as down_proj. StoredShapes::by_pair in tools/models/checkpoint/stored_shapes.cc has
    that rule for checkpoints."""
    kind = conv1d()
    if kind is not None and isinstance(module, kind):
        return name == "weight"
    weights = {each: p for each, p in module._parameters.items() if p is not None and p.dim() == 3}
    if name not in weights:
        return False
    if isinstance(said := module.__dict__.get("is_transposed"), bool):
        return said
    up, down = weights.get("gate_up_proj"), weights.get("down_proj")
    return (up is not None and down is not None and name in ("gate_up_proj", "down_proj")
            and up.shape[1:] == (down.shape[2], 2 * down.shape[1]))


def _matrices(tensor: torch.Tensor, transposed: bool = False) -> Iterator[Matrix]:
    """Gives the matrices of a tensor, each as long as the next one is not asked for. transposed: each is turned."""
    if tensor.is_meta:
        raise NotImplementedError("the tensor is on the meta device; allowed: one that has elements")
    for matrix in tensor.reshape(-1, *tensor.shape[-2:]):
        turned = matrix.t() if transposed else matrix
        plain = turned.to("cpu", torch.float32 if matrix.dtype == torch.float64 else matrix.dtype).contiguous()
        rows, cols = plain.shape
        yield Matrix(plain.data_ptr(), _WORDS[plain.dtype], rows, cols, cols)


_OF_ATTENTION = nn.modules.linear.NonDynamicallyQuantizableLinear
_MOST_NAMED = 4


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


class Watched:
    """The sums of ``watching``."""

    def __init__(self, layers: dict[str, nn.Linear], recipes: str | Iterable[str], sample: float) -> None:
        self._layers = layers
        self._sample = check_sample(sample)
        self._names = names_of(recipes)
        self._recipes = {role: wanted(self._names, role) for role in ROLES}
        self._tensors: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}
        self._is_open = True

    @property
    def inspection(self) -> Inspection:
        """The sums over all calls up to now. Tensors are named by their layer: "layers.0.up_proj.input" and
        "layers.0.up_proj.gradient", the gradient of the layer's output; shapes are those of the last call. ``remarks``
        name the layers that were not called, such as the output projection of ``nn.MultiheadAttention``, which
        multiplies with that layer's weight itself."""
        return Inspection(self._tensors.values(), self._names, self._remarks())

    def _remarks(self) -> list[str]:
        unseen = [name for name in self._layers if f"{name}.input" not in self._tensors]
        owned = [name for name in unseen if isinstance(self._layers[name], _OF_ATTENTION)]
        others = [name for name in unseen if name not in owned]
        remarks = []
        if owned:
            remarks.append(f"not measured: {_some(owned)}, whose weight nn.MultiheadAttention uses without a call of "
                           "the layer")
        if others:
            remarks.append(f"not measured, because not called with a matrix of floats: {_some(others)}")
        return remarks

    @property
    def calls(self) -> dict[str, int]:
        """How often each tensor has been measured."""
        return dict(self._calls)

    def __str__(self) -> str:
        return str(self.inspection)

    def _repr_html_(self) -> str:
        return self.inspection._repr_html_()

    @torch.no_grad()
    def _see(self, name: str, role: str, values: torch.Tensor) -> None:
        is_readable = values.layout is torch.strided and not values.is_nested and not values.is_meta
        if not self._is_open or not is_readable or values.dtype not in _WORDS:
            return
        if values.dim() == 0 or values.numel() == 0:
            return
        rows = values.detach().reshape(-1, values.shape[-1])
        tensor = self._tensors.setdefault(name, Tensor(name, tuple(rows.shape)))
        tensor.shape = tuple(rows.shape)
        for matrix in _matrices(rows):
            add_matrix(tensor, matrix, 0, self._recipes[role], self._sample)
        self._calls[name] = self._calls.get(name, 0) + 1


@contextmanager
def watching(
    model: nn.Module, recipes: str | Iterable[str] = "blockwise", sample: float = 1.0, every: int = 1
) -> Iterator[Watched]:
    """Measures, while the block runs, the FP8 error of the inputs of a model's linear layers and of the gradients of
    their outputs.

    >>> with octile.torch.watching(model, ["tensorwise", "blockwise"], every=10) as w:
    ...     loss_of(model(x)).backward()
    >>> print(w)

    The layers are ``nn.Linear`` and its subclasses, FP8 or not; the model computes as usual, a compiled one eagerly.
    Inputs are quantised as a recipe's activations, in blocks along their rows, and gradients as its gradients. Each is
    copied to the host and measured there, at every ``every``-th call of a layer, which takes far longer than the layer;
    ``sample`` is the share of each to measure. Calls within a backward pass repeat earlier ones for checkpointing, and
    are not counted again. Gradients of a backward pass after the block are not measured. ``underflow`` counts flushed
    values on the device, only for FP8 layers. Raises ValueError for a model without linear layers.
    """
    check_model(model)
    if not is_integer(every, 1):
        raise refuse("every", every, "is an integer from 1 on")
    layers = {name or "model": module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers:
        raise refuse("model", type(model).__name__, "is a model with torch.nn.Linear in it")
    watched = Watched(layers, recipes, sample)
    hooks = [module.register_forward_hook(_hook_of(watched, name, every), with_kwargs=True)
             for name, module in layers.items()]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield watched
    finally:
        watched._is_open = False
        for hook in hooks:
            hook.remove()


def _hook_of(watched: Watched, name: str, every: int):
    calls = {False: 0, True: 0}  # in a forward pass, and in a backward pass

    def look(_module: nn.Module, inputs: tuple, keywords: dict, output: object) -> None:
        # A call within a backward pass is a repetition for checkpointing. Its output gets a gradient only with
        # use_reentrant=True, with which the output of the first call gets none.
        is_repeated = torch._C._current_graph_task_id() != -1
        calls[is_repeated] += 1
        if (calls[is_repeated] - 1) % every:
            return
        given = next((each for each in (*inputs, *keywords.values()) if isinstance(each, torch.Tensor)), None)
        if given is not None and not is_repeated:
            watched._see(f"{name}.input", "activation", given)
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(lambda gradient: watched._see(f"{name}.gradient", "gradient", gradient))

    return look
