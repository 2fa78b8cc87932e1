"""``shard_fp8``: FSDP2 gathers the weights of FP8 layers as codes, a byte an element."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state
from torch.distributed.tensor import Replicate, Shard

from octile._types import TensorType, refuse
from octile.torch._arguments import check_model
from octile.torch.distributed.agreement import check_ranks_agree
from octile.torch.distributed.pieces import Pieces, Range, Scales, laid_out, via_bf16
from octile.torch.distributed.shard_weight import ShardWeight, gathered_weight
from octile.torch.layer import Layer
from octile.torch.modules import NEVER, Linear
from octile.torch.names import by_value, pattern_of, shortened
from octile.torch.held_weight import HeldWeight, may_be_held
from octile.torch.transposed import TransposedLinear
from octile.torch.weights import when_weights_changed


def shard_fp8(model: nn.Module) -> Sharding:
    """Makes FSDP2 gather the weights of the model's FP8 layers as FP8 codes, one byte an element instead of two. Call
    it after ``convert`` and before ``fully_shard``, on all ranks. Returns a ``Sharding``: ``print`` it to see which
    weights travel in FP8, and why others do not.

        octile.torch.convert(model)
        print(octile.torch.distributed.shard_fp8(model))
        for block in model.layers:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())

    The loop, the optimizer and checkpoints stay as they are. Parameters are sharded masters under the same names, in
    the model's dtype. The first gather of each forward pass quantises all of them: each rank its own rows, in four
    launches, and the ranks reduce the maxima of blocks, 4 bytes for each 16384 elements. Later gathers of the pass, and
    those of its backward pass, move the same codes. So a forward pass uses the current masters, even if only one rank
    has written them. Codes, scales, outputs, gradients and masters have the bits of a run that gathers the weights and
    quantises them afterwards, however rows are cut. float32 masters are rounded to bfloat16 first if the
    ``MixedPrecisionPolicy`` has ``param_dtype=torch.bfloat16``.

    Weights of ``Linear`` with the recipes "blockwise", "blockwise_hybrid" and "tensorwise" travel in FP8. Their layers
    compute in FP8 for any number of tokens, and without FP8 (``set_fp8``) with the dequantised values.

    ``fully_shard`` then refuses shards along another dimension than 0, CPU offload, and meshes with tensor parallelism.
    The first gather refuses a ``param_dtype`` that cannot be cast exactly from the masters, and an integer
    ``reshard_after_forward``. If layers, recipes or sizes differ between ranks of a shard group, ``fully_shard`` raises
    ValueError on each.

    A forward pass is a call of ``model``; without such a call, it begins when a weight is gathered outside of backward
    for a second time. If ``trust_weights`` was called for all these layers, forward passes reuse the codes of the last
    one, until, on all ranks, an optimizer of ``torch.optim`` has made a step that is not compiled, the model was
    switched between ``train()`` and ``eval()``, or ``load_state_dict`` or ``weights_changed()`` was called.

    Raises TypeError for an object that is not a module; ValueError for a model without FP8 layers, and for one whose
    weights are sharded already or held by ``primary_fp8``.
    """
    check_model(model)
    sharding = Sharding(weakref.ref(model))
    seen: dict[int, str] = {}
    for prefix, layer in model.named_modules():
        if not isinstance(layer, Layer):
            continue
        name = f"{prefix}.weight" if prefix else "weight"
        _check_weight(name, layer.weight)
        if id(layer.weight) in seen:
            name = seen[id(layer.weight)]
        elif (reason := _why_not(layer)) is None:
            sharding.travellers[name] = Traveller(name, layer, sharding)
        else:
            sharding.others[name] = reason
        seen[id(layer.weight)] = name
        sharding.names[layer] = name
    if not sharding.names:
        raise refuse("model", "one without FP8 layers", "is one that octile.torch.convert has converted")
    sharding.follow_passes(model)
    for layer, name in sharding.names.items():
        layer.__dict__["_sharding"] = sharding
        if name in sharding.travellers and isinstance(layer, Linear):
            layer.__dict__["least_tokens"] = (0, 0, 0)
    return sharding


def _check_weight(name: str, weight: nn.Parameter) -> None:
    if hasattr(weight, "to_local"):
        raise refuse(name, type(weight).__name__, "is a plain tensor: call shard_fp8 before fully_shard")
    if isinstance(weight, HeldWeight):
        raise refuse(name, "held in FP8", "is a plain tensor: FSDP2 shards no weights of primary_fp8")


def _why_not(layer: Layer) -> str | None:
    """Returns why the weight of a layer does not travel in FP8, or None."""
    if layer._code is None:
        return "its sizes are not multiples of 16"
    if not isinstance(layer, Linear):
        return "it lies [in, out]" if isinstance(layer, TransposedLinear) else "it is of experts"
    if layer.recipe.is_delayed:
        return "recipe 'delayed' has scales that layers of such weights do not take"
    if not may_be_held(layer.recipe):
        return f"recipe {layer.recipe.name!r} has other codes in the transposed copy"
    if layer.recipe.dx == "bf16":
        return "its input gradients read the weight in bf16"
    if layer.least_tokens[0] >= NEVER:
        return "its gradients are computed without FP8"
    return None


class Traveller:
    """A weight that travels in FP8, on one rank."""

    def __init__(self, name: str, layer: Linear, sharding: Sharding) -> None:
        self.name, self.sharding = name, sharding
        self.shape = (layer.out_features, layer.in_features)
        self.kind: TensorType = layer.recipe.weight
        self.layer = weakref.ref(layer)
        self.is_sharded = False
        self.was_gathered = False  # for a forward pass, since it was quantised
        self.fsdp: Any = None  # a weak reference to FSDP2's object; PyTorch swaps parameters that have none
        self.own_codes: torch.Tensor | None = None  # uint8, of the padded rows of this rank
        self.scales: torch.Tensor | None = None  # of the whole weight

    def placed(self, weight: nn.Parameter) -> None:
        """The layer's weight is a sharded parameter now."""
        if type(weight._local_tensor) is ShardWeight:
            return
        _check_shard(self.name, weight)
        weight._local_tensor = ShardWeight.of(weight._local_tensor, self)
        self.is_sharded = True
        self.sharding.forget_exchanges()

    @property
    def shard(self) -> ShardWeight:
        """The rank's rows, once the weights were quantised."""
        return self.fsdp()._sharded_local_tensor

    def codes(self) -> torch.Tensor:
        """Returns what FSDP2 gathers: uint8 codes of the padded shard."""
        # All ranks gather the same weights in the same order, so that they decide the same.
        is_forward = torch._C._current_graph_task_id() == -1
        if self.sharding.changed or (is_forward and self.was_gathered and not self.sharding.is_trusted()):
            self.sharding.quantize()
        self.was_gathered |= is_forward
        return self.own_codes

    def gathered(self, codes: torch.Tensor, dtype: torch.dtype, out: HeldWeight | None) -> HeldWeight:
        """Returns the whole weight of gathered codes."""
        if out is not None:
            out.scales = self.scales
            return out
        return gathered_weight(codes[: self.shape[0]], self.scales, self.kind, dtype)


def _check_shard(name: str, weight: nn.Parameter) -> None:
    placements, mesh = weight.placements, weight.device_mesh
    shards = [p for p in placements if not isinstance(p, Replicate)]
    if len(shards) != 1 or type(placements[-1]) is not Shard or placements[-1].dim != 0 or len(placements) > 2:
        allowed = "are (Shard(dim=0),) and (Replicate(), Shard(dim=0)), what fully_shard does to a plain weight"
        raise refuse(f"the placements of {name}", str(placements), allowed)
    if weight._local_tensor.device.type not in (mesh.device_type, "meta"):
        raise refuse(f"the device of {name}", str(weight._local_tensor.device), f"is {mesh.device_type}: weights that "
                     "travel in FP8 are not offloaded to the CPU")  # fmt: skip


@dataclass(eq=False)
class Sharding:
    """The result of ``shard_fp8``: which weights FSDP2 gathers in FP8, and why it does not gather others in FP8."""

    model: weakref.ref[nn.Module] = field(repr=False)
    travellers: dict[str, Traveller] = field(default_factory=dict)  #: by the weights' names: those that travel in FP8
    others: dict[str, str] = field(default_factory=dict)  #: names of other weights of FP8 layers, and why
    names: weakref.WeakKeyDictionary = field(default_factory=weakref.WeakKeyDictionary, repr=False)
    changed: bool = field(default=True, repr=False)  # the next gather quantises
    quantizations: int = 0  #: how many times the weights were quantised so far
    _checked: set[str] = field(default_factory=set, repr=False)  # names of groups
    _exchanges: list[Exchange] = field(default_factory=list, repr=False)
    _hook: torch.utils.hooks.RemovableHandle | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        when_weights_changed(self)

    def __str__(self) -> str:
        elements = sum(math.prod(t.shape) for t in self.travellers.values())
        sharded = sum(t.is_sharded for t in self.travellers.values())
        patterns = Counter(map(pattern_of, [*self.travellers, *self.others]))
        lines = [f"{len(self.travellers)} weights travel in FP8, a byte an element: {elements} elements"]
        if self.travellers:
            lines.append(f"  {shortened(list(self.travellers), patterns)}")
            lines.append(f"  fully_shard has sharded {sharded} of them so far")
        for reason, names in by_value(self.others).items():
            lines.append(f"  not in FP8, because {reason}: {shortened(names, patterns)}")
        return "\n".join(lines)

    def weights_changed(self) -> None:
        """The masters may have been written where nothing is counted."""
        self.changed = True

    def forget_exchanges(self) -> None:
        """The next gather finds all shards anew, and quantises them."""
        self._exchanges, self.changed = [], True
        model = self.model()
        if model is not None and self._hook is not None:  # before the hooks of FSDP2, which gather
            model._forward_pre_hooks.move_to_end(self._hook.id, last=False)

    def follow_passes(self, model: nn.Module) -> None:
        """Lets each call of the model quantise."""
        _shardings[model] = self
        self._hook = model.register_forward_pre_hook(_begin_pass, prepend=True)

    def is_trusted(self) -> bool:
        """Returns whether ``trust_weights`` was called for all layers whose weights travel."""
        layers = [traveller.layer() for traveller in self.travellers.values()]
        return all(layer is None or layer._rule.trusted for layer in layers)

    def placed(self, layer: Layer, weight: nn.Parameter) -> bool:
        """The weight of a layer is another parameter now. Returns whether it is one of those that travel in FP8, whole
        or sharded."""
        if isinstance(weight, HeldWeight):
            return True
        if not hasattr(weight, "to_local"):
            return False
        name = self.names[layer]
        traveller = self.travellers.get(name)
        if traveller is not None and type(weight._local_tensor) is ShardWeight:
            return True
        self._check_ranks(weight)
        if traveller is None:
            return False
        traveller.placed(weight)
        return True

    @staticmethod
    def make_plain(saved: torch.Tensor) -> None:
        """Makes the local tensor of a state dict's entry a plain one, of the same memory."""
        local = getattr(saved, "_local_tensor", None)
        if isinstance(local, ShardWeight):
            saved._local_tensor = local.plain

    # ---- agreement

    def _description(self) -> list[str]:
        lines = [f"{t.name} {list(t.shape)} {t.kind.text}" for t in self.travellers.values()]
        return lines + [f"{name}: {reason}" for name, reason in self.others.items()]

    def _check_ranks(self, weight: nn.Parameter) -> None:
        """Raises ValueError on every rank of a group unless all have the same layers. Once for each group."""
        group = weight.device_mesh.get_group(weight.device_mesh.ndim - 1)
        if group.group_name in self._checked:
            return
        device = torch.device(weight.device_mesh.device_type)
        check_ranks_agree(self._description(), "model", group, device)
        self._checked.add(group.group_name)

    # ---- quantising

    def prepare(self) -> None:
        """Compiles what ``quantize`` launches. Ranks need not call it together."""
        self._find_shards()

    def _find_shards(self) -> None:
        if not self._exchanges or any(not exchange.is_current() for exchange in self._exchanges):
            self._exchanges = self._made_exchanges()

    @torch.no_grad()
    def quantize(self) -> None:
        """Quantises all weights, on all ranks."""
        self._find_shards()
        for exchange in self._exchanges:
            exchange.pieces.quantize(exchange.group)
            for traveller in exchange.travellers:
                traveller.was_gathered = False
        self.changed = False
        self.quantizations += 1

    def _made_exchanges(self) -> list[Exchange]:
        by_key: dict[tuple, list[tuple[Traveller, Any]]] = {}
        known = _travellers_of_fsdp(self.model())
        for traveller in self.travellers.values():
            if not traveller.is_sharded:
                continue
            if traveller not in known:
                allowed = "is, for shard_fp8, the module that fully_shard was called with, or one around it"
                raise refuse("model", f"one without the module that shards {traveller.name}", allowed)
            fsdp = known[traveller]
            shard, mesh = fsdp._sharded_local_tensor, fsdp.mesh_info.mesh
            way, group = _way_to_codes(traveller, fsdp), mesh.get_group(mesh.ndim - 1)
            by_key.setdefault((traveller.kind, shard.dtype, shard.device, way, group), []).append((traveller, fsdp))
        return [Exchange(*key, members) for key, members in by_key.items()]


# By the model that ``shard_fp8`` was called for. Copies of a model have the hook, and nothing that travels.
_shardings: weakref.WeakKeyDictionary[nn.Module, Sharding] = weakref.WeakKeyDictionary()


def _begin_pass(model: nn.Module, _) -> None:
    sharding = None if torch.compiler.is_compiling() else _shardings.get(model)
    if sharding is not None and not sharding.is_trusted():
        sharding.changed = True


def _travellers_of_fsdp(model: nn.Module | None) -> dict[Traveller, Any]:
    """Returns what FSDP2 knows about the parameters that travel."""
    known = {}
    for module in () if model is None else model.modules():
        state = _get_module_fsdp_state(module)
        group = None if state is None else state._fsdp_param_group
        for fsdp in () if group is None else group.fsdp_params:
            if type(fsdp._sharded_local_tensor) is ShardWeight:
                known[fsdp._sharded_local_tensor.traveller] = fsdp
    return known


def _way_to_codes(traveller: Traveller, fsdp: Any) -> bool:
    """Returns whether a master is rounded to bfloat16 on the way. Raises for settings by which FSDP2 would change it
    too."""
    if fsdp.offload_to_cpu:
        raise NotImplementedError(
            f"octile: {traveller.name} is offloaded to the CPU, and travels in FP8; allowed is one of the two: call "
            "fully_shard without CPUOffloadPolicy"
        )
    after = fsdp.post_forward_mesh_info
    if after is not None and after is not fsdp.mesh_info and after.shard_mesh_size != fsdp.mesh_info.shard_mesh_size:
        raise refuse("reshard_after_forward", after.shard_mesh_size, f"are True and False, because {traveller.name} "
                     "travels in FP8")  # fmt: skip
    master = fsdp._sharded_local_tensor.dtype
    dtype = fsdp.mp_policy.param_dtype or master
    return via_bf16(master, dtype, "param_dtype", f"because {traveller.name} travels in FP8")


class Exchange:
    """Weights of one type and group, which are quantised together."""

    def __init__(self, kind, dtype, device, way, group, members: list[tuple[Traveller, Any]]) -> None:
        self.group, self.travellers = group, [traveller for traveller, _ in members]
        sizes = [math.prod(fsdp.padded_sharded_param_size) for _, fsdp in members]
        places, length = laid_out(sizes)
        with torch.inference_mode(False):
            # Elements that no rank has stay zero in the padding.
            codes = torch.zeros(length, dtype=torch.uint8, device=device)
            scales = Scales([traveller.shape for traveller in self.travellers], kind, device)
        ranges = []
        for i, (traveller, fsdp) in enumerate(members):
            padded = fsdp.padded_sharded_param_size
            traveller.own_codes = codes[places[i] :][: sizes[i]].view(padded)
            traveller.scales, traveller.fsdp = scales.of(i), weakref.ref(fsdp)
            start = min(fsdp.mesh_info.shard_mesh_rank * padded[0], traveller.shape[0]) * traveller.shape[1]
            ranges.append(Range(traveller.shape, start, traveller.shard.plain, places[i]))
        self._addresses = self._addresses_now()
        self.pieces = Pieces(ranges, codes, scales, way)

    def _addresses_now(self) -> list[tuple[int, int, torch.dtype]]:
        return [(t.shard.plain.data_ptr(), t.shard.plain.numel(), t.shard.dtype) for t in self.travellers]

    def is_current(self) -> bool:
        """Returns whether the shards are where they were."""
        return self._addresses == self._addresses_now()
