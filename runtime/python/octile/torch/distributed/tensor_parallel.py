"""Styles of ``parallelize_module`` for FP8 layers whose features and tokens ranks share: Megatron's tensor parallelism
with sequence parallelism, where activations travel as FP8 codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from octile._types import is_integer, one_of, refuse, wrong_type
from octile.torch._arguments import check_model
from octile.torch.distributed.agreement import check_ranks_agree
from octile.torch.distributed.layers import (
    ColumnLinear,
    PreparedModule,
    RowLinear,
    ShardedLinear,
    prepare_input,
)
from octile.torch.distributed.operands import BLOCK
from octile.torch.distributed.ranks import ranks_of
from octile.torch.gated_modules import FusedMlp
from octile.torch.layer import MULTIPLE
from octile.torch.modules import Linear

WIRES = ("fp8", "bf16")
#: Recipes whose operands are the same bits, whether they are quantised before they are sent or afterwards.
RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise")


class _Style(ParallelStyle):
    def __init__(self, *, sequence_dim: int = 1, wire: str = "fp8") -> None:
        super().__init__()
        if not is_integer(sequence_dim):
            raise refuse("sequence_dim", sequence_dim, "are integers from 0 on")
        self.sequence_dim, self.wire = sequence_dim, one_of("wire", wire, WIRES)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sequence_dim={self.sequence_dim}, wire={self.wire!r})"


class _LinearStyle(_Style):
    kind: type[ShardedLinear]

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _check_mesh(device_mesh)
        what, problem = "", None
        try:
            what = self._description(module, device_mesh.size())
        except (TypeError, ValueError, NotImplementedError) as error:
            problem = error
        _check_agreement(what, device_mesh, problem)
        self._shard(module, device_mesh)
        return module

    def _description(self, module: nn.Module, size: int) -> str:
        """Returns what the ranks agree on, or raises an error for a layer that is not parallelised."""
        if type(module) is not Linear:
            allowed = "octile.torch.Linear: convert goes before parallelize_module"
            raise wrong_type("module", module, allowed)
        recipe = module.recipe
        if recipe.name not in RECIPES or recipe.plain:
            raise NotImplementedError(
                f"octile: recipe is {recipe.text!r}; tensor parallelism has {', '.join(RECIPES)}, whose operands are "
                "the same bits on every number of ranks"
            )
        if module._watch is not None:
            raise NotImplementedError("octile: module is watched by a sentry; tensor-parallel layers have none")
        if type(module.weight) is not nn.Parameter:
            raise refuse("module.weight", type(module.weight).__name__, "is a plain Parameter")
        name, features = self.kind.divided, getattr(module, self.kind.divided)
        if features % (size * MULTIPLE):
            raise refuse(name, features, f"are multiples of {size * MULTIPLE}, {MULTIPLE} for each of {size} ranks")
        sizes = f"[{module.out_features}, {module.in_features}]"
        scales = f":{recipe.scales}" if recipe.scales != "pow2" else ""
        bias = "" if module.bias is None else ", bias"
        return f"{self!r} of {recipe.name}{scales} {sizes} {module.weight.dtype}{bias}"

    def _shard(self, module: Linear, mesh: DeviceMesh) -> None:
        placements = {"weight": self.kind.weight_placement, "bias": self.kind.bias_placement}
        self.kind.take_over(module, ranks_of(mesh.get_group(), self.sequence_dim), self.wire)
        for name, placement in placements.items():
            parameter = module._parameters[name]
            if parameter is None:
                continue
            shards = distribute_tensor(parameter, mesh, [placement], src_data_rank=self.src_data_rank)
            setattr(module, name, nn.Parameter(shards, requires_grad=parameter.requires_grad))


class OctileColwiseParallel(_LinearStyle):
    """Divides the outputs of an ``octile.torch.Linear`` between the ranks of a 1-D mesh: each has [n / ranks, k] of the
    weight, as a DTensor, and n / ranks of the bias.

    The layer takes this rank's tokens of x, as sequence parallelism keeps activations between layers, and returns all
    tokens of its n / ranks outputs: of x [batch, tokens / ranks, k] it makes [batch, tokens, n / ranks]. x is quantised
    where it is, and travels as FP8 codes with their scales; for backward each rank keeps the transposed copy of its own
    tokens, whose gather overlaps the GEMM for dx. dx is summed over the ranks in x's dtype. Operands have the bits of
    gathering x and quantising it afterwards. Several layers with the same input quantise and gather it once, by
    ``OctilePrepareInput`` on the module that calls them.

    sequence_dim: the dimension of x that the ranks divide, the same number of tokens on each, which calls do not check;
    those before it are batches. wire: "fp8"; or "bf16", which gathers x in its dtype, quantises it afterwards, and
    keeps a copy of all tokens. Calls with "fp8" also do this if a rank's tokens of a sequence (without batches before
    ``sequence_dim``: all of them) are not a multiple of 128; ``tensor_parallel_report`` reports it. Recipes:
    "blockwise", "blockwise_hybrid" and "tensorwise", whose maxima are reduced over the ranks; others raise
    NotImplementedError. If ranks give different arguments, every rank raises ValueError. Each pass makes the FP8 copies
    of the weight. A weight with ``main_grad`` raises NotImplementedError: gradients go to ``weight.grad``.
    """

    kind = ColumnLinear


class OctileRowwiseParallel(_LinearStyle):
    """Divides the inputs of an ``octile.torch.Linear`` between the ranks of a 1-D mesh: each has [n, k / ranks] of the
    weight, as a DTensor. The bias is on every rank.

    The layer takes all tokens of this rank's k / ranks inputs, as a layer with ``OctileColwiseParallel`` returns them,
    and returns this rank's tokens of x weight^T + bias. Products are summed over the ranks in x's dtype, and the bias
    is added to the sum. In backward each rank quantises its tokens of dy, and both copies travel as FP8 codes: 2.06
    bytes an element instead of bf16's 2, but a rank quantises only its own tokens, and the gather of the second copy
    overlaps the GEMM for dx. The bias's gradient is the fp32 sum of each rank's tokens, added over the ranks.

    The rest is as ``OctileColwiseParallel`` says.
    """

    kind = RowLinear


class OctilePrepareInput(_Style):
    """Quantises and gathers the input of a module once, for all layers with ``OctileColwiseParallel`` below it, such as
    an attention with q, k and v, or an MLP with gate and up.

    The module is called with this rank's tokens of x. Its forward gets a placeholder with the sizes of all tokens. It
    may only read the sizes and pass the placeholder to these layers: it has no memory, and other operations compute
    NaN. If a call computes without FP8 (``set_fp8``, ``least_tokens``), forward gets the gathered x itself.

    argument: which argument of forward is x, by position or by name. sequence_dim and wire: as in
    ``OctileColwiseParallel``, and equal to those of the layers.
    """

    def __init__(self, argument: int | str = 0, *, sequence_dim: int = 1, wire: str = "fp8") -> None:
        super().__init__(sequence_dim=sequence_dim, wire=wire)
        if not is_integer(argument) and not isinstance(argument, str):
            raise refuse("argument", argument, "are a place from 0 on and a name")
        self.argument = argument

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        _check_mesh(device_mesh)
        _check_agreement(repr(self), device_mesh)
        prepare_input(module, self.argument, ranks_of(device_mesh.get_group(), self.sequence_dim), self.wire)
        return module


def _check_mesh(mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise refuse("device_mesh.ndim", mesh.ndim, "is 1: take a dimension of the mesh, such as mesh['tp']")


def _check_agreement(what: str, mesh: DeviceMesh, problem: Exception | None = None) -> None:
    check_ranks_agree([what], "module", mesh.get_group(), torch.device(mesh.device_type), problem)


@dataclass
class TensorParallelReport:
    """The tensor-parallel layers of a model, and how the last call of each sent activations."""

    layers: dict[str, str]  #: name to sizes of this rank and the way that activations took
    notes: dict[str, str]  #: name to the difference from the layer on one rank

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} tensor-parallel layers"]
        lines += [f"  {name}: {text}" for name, text in self.layers.items()]
        return "\n".join(lines + [f"  {name}: note: {text}" for name, text in self.notes.items()])


def tensor_parallel_report(model: nn.Module) -> TensorParallelReport:
    """Describes the tensor-parallel layers of a model: sizes, how activations travelled in the last call and why, and
    whether this rank's weight is quantised to other bits than its part of the whole weight."""
    check_model(model)
    report = TensorParallelReport({}, {})
    for name, layer in model.named_modules():
        if _computes_its_activation(layer):
            report.notes[name] = (
                "PyTorch computes its activation: layers of fused MLPs that ranks divide run one by one"
            )
        if not isinstance(layer, ShardedLinear):
            continue
        n, k = layer.weight.to_local().shape
        report.layers[name] = f"{layer.word} [{n}, {k}], activations {layer.sent}"
        divided = n if isinstance(layer, ColumnLinear) else k
        if layer.recipe.name != "tensorwise" and divided % BLOCK:
            report.notes[name] = (
                f"{layer.divided} on this rank are {divided}, no multiple of {BLOCK}: weight and gradients or inputs "
                "have blocks of their own, and other bits than on one rank"
            )
    return report


def _computes_its_activation(module: nn.Module) -> bool:
    """Returns whether a module is an MLP that ``convert`` has fused, and that its division has taken apart."""
    if isinstance(module, FusedMlp):
        return any(isinstance(child, ShardedLinear) for child in module.children())
    return isinstance(module, PreparedModule) and module._was_fused


__all__ = [
    "OctileColwiseParallel",
    "OctilePrepareInput",
    "OctileRowwiseParallel",
    "TensorParallelReport",
    "tensor_parallel_report",
]
