"""Expert parallelism: the experts of a mixture spread over the ranks of a group, to whom tokens travel in FP8."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from octile._types import one_of, refuse, wrong_type
from octile.torch._arguments import check_model
from octile.torch._operators import message_bytes
from octile.torch.distributed.agreement import check_ranks_agree
from octile.torch.distributed.expert_exchange import Spread
from octile.torch.distributed.expert_forward import FORWARD
from octile.torch.expert_modules import TakenExperts
from octile.torch.held_weight import HeldWeight
from octile.torch.recipes import Recipe

_WIRES = ("fp8", "bf16")


class ExpertParallel(ParallelStyle):
    """Spreads the experts of a mixture over a mesh of one dimension: rank r has an equal part of them, in their order.

        octile.torch.convert(model)
        parallelize_module(model, mesh["ep"], {"layers.*.mlp.experts": ExpertParallel()})

    It works on experts that ``convert`` has converted: transformers' and torchtitan's ``GroupedExperts``, for which it
    replaces torchtitan's ``ExpertParallel``. Parameters become DTensors with ``Shard(0)``; their names in a state dict
    stay. Apply it before ``fully_shard``. The module has the same inputs and outputs as before: a rank's own tokens.
    Each rank may have any number of tokens, even none.

    A call sends the rows of tokens to the ranks of their experts and the results back, and in backward the gradients.
    With ``wire="fp8"`` tokens are quantised once, before they are sent to several experts, and travel with their
    scales: forward and backward each send about half of the bytes of bfloat16 in one direction. Results travel back in
    x's dtype, and are multiplied by the router's scores at the token's rank. Forward and the gradient of x have the
    same bits as if rows travelled in bfloat16 and the experts' ranks quantised them. For gradients of weights, rows are
    quantised a second time, along the columns: docs/numerics.md, "Quantising twice", has the five cases in which they
    differ.

    Only recipes whose activations have 1x128 blocks with scales that are powers of two send FP8 ("blockwise" and
    "blockwise_hybrid"). With others, with ``wire="bf16"``, without FP8 (``set_fp8``, a paused sentry), and with a
    sentry that checks each call, rows travel in x's dtype; ``expert_parallel`` reports the recipe's case. A call
    computes in FP8 for any number of rows, because no rank knows the numbers of the others: ``least_rows`` is ignored.

    Errors, on every rank: ValueError if the number of experts is not a multiple of the ranks, or if modules of two
    ranks differ (sizes, recipes, dtypes); RuntimeError if calls of two ranks differ (columns, dtypes, FP8 on or off,
    gradients or none), or if another rank refused its call. Each call waits once for the device, to learn how many rows
    arrive, so it is not captured in a CUDA graph, and ``torch.compile`` leaves it out.
    """

    def __init__(self, *, wire: str = "fp8") -> None:
        super().__init__()
        self.wire = one_of("wire", wire, _WIRES)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        spread = _agreed(module, device_mesh, self.wire)
        module._be_spread(spread)
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                shards = distribute_tensor(parameter, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank)
                module.register_parameter(name, nn.Parameter(shards, parameter.requires_grad))
        return module


def _agreed(module: nn.Module, mesh: DeviceMesh, wire: str) -> Spread:
    """Returns how a module's experts are spread, once all ranks have said the same."""
    if mesh.ndim != 1:
        raise refuse("device_mesh", mesh, "is a mesh of one dimension, such as mesh['ep']")
    group = mesh.get_group()
    refused = _why_not_spread(module, group.size())
    signatures = [] if refused else [_signature(module, wire)]
    check_ranks_agree(signatures, "module", group, torch.device(mesh.device_type), refused)
    first = next(iter(module._fp8_weights().values()))
    experts, columns = first.experts, first.weight.shape[1 if first.transposed else 2]
    why_not = _why_no_messages(first.recipe, wire)
    forward = next(FORWARD[kind] for kind in type(module).__mro__ if kind in FORWARD)
    return Spread(group, experts, columns, forward, not why_not, why_not)


def _why_not_spread(module: nn.Module, ranks: int) -> Exception | None:
    if not isinstance(module, TakenExperts):
        return wrong_type("module", module, "experts that octile.torch.convert has converted")
    if module.spread is not None:
        return refuse("module", type(module).__name__, "are experts that are not spread already")
    layers = module._fp8_weights()
    for name, layer in layers.items():
        if isinstance(layer.weight, HeldWeight) or hasattr(layer.weight, "to_local"):
            return refuse(
                name, type(layer.weight).__name__, "is a plain parameter: spread experts before anything else"
            )
    experts = next(iter(layers.values())).experts
    if experts % ranks:
        return refuse("experts", experts, f"are multiples of {ranks}, the ranks of the mesh")
    return None


def _signature(module: TakenExperts, wire: str) -> str:
    parameters = [f"{name} {list(p.shape)} {p.dtype}" for name, p in module._parameters.items() if p is not None]
    recipe = next(iter(module._fp8_weights().values())).recipe
    return f"{', '.join(parameters)} with {recipe} and wire {wire!r}"


def _why_no_messages(recipe: Recipe, wire: str) -> str:
    """Returns why rows do not travel in FP8, or nothing."""
    if wire == "bf16":
        return "wire is 'bf16'"
    if recipe.plain:
        return f"recipe {recipe.text} has gradients without FP8"
    if recipe.activation.granularity != "1x128":
        what = "whole tensors" if recipe.activation.granularity == "tensor" else recipe.activation.granularity
        return f"recipe {recipe.name} has scales of {what}, not of 1x128 blocks"
    if not all(kind.scales == "pow2" for kind in (recipe.activation, recipe.gradient)):
        scales = f"scales of recipe {recipe.name}:{recipe.scales} are not powers of two"
        return f"{scales}, so that rows that are quantised twice would differ"
    return ""


@dataclass
class SpreadReport:
    """The result of ``expert_parallel``: the names of modules, and how their rows travel."""

    experts: dict[str, str] = field(default_factory=dict)
    fp8: list[str] = field(default_factory=list)  #: names of those whose rows travel in FP8

    def __str__(self) -> str:
        head = f"{len(self.experts)} modules of experts spread, rows of {len(self.fp8)} travel in FP8"
        return "\n".join([head, *(f"  {name}: {text}" for name, text in self.experts.items())])


def expert_parallel(model: nn.Module, mesh: DeviceMesh | dist.ProcessGroup, wire: str = "fp8") -> SpreadReport:
    """Applies ``ExpertParallel(wire=wire)`` to all converted experts of a model, and returns the report.

    mesh: a mesh of one dimension, or a process group of which each rank has one device. ValueError if the model has no
    converted experts.
    """
    check_model(model)
    names = [name for name, module in model.named_modules() if isinstance(module, TakenExperts)]
    if not names:
        raise refuse("model", type(model).__name__, "is a model with experts that octile.torch.convert has converted")
    if isinstance(mesh, dist.ProcessGroup):
        device = next(model.get_submodule(names[0]).parameters()).device.type
        mesh = DeviceMesh.from_group(mesh, device)
    style, report = ExpertParallel(wire=wire), SpreadReport()
    for name in names:
        module = model.get_submodule(name)
        parallelize_module(module, mesh, style)
        report.experts[name] = _told(module.spread)
        if module.spread.fp8:
            report.fp8.append(name)
    return report


def _told(spread: Spread) -> str:
    where = f"{spread.experts} experts on {spread.ranks} ranks"
    if not spread.fp8:
        return f"{where}, rows travel in x's dtype: {spread.why_not}"
    sent = message_bytes(spread.columns)
    return f"{where}, rows travel in FP8: {sent} bytes a row, {sent / (2 * spread.columns):.3f} of bfloat16's"
