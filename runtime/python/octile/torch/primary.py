"""``primary_fp8``: trains a model whose weights are held in FP8, with masters in the optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from octile._types import one_of, refuse, wrong_type
from octile.torch._arguments import FLOATS, check_model
from octile.torch.layer import Layer
from octile.torch.primary_state import FORMS, MasterState
from octile.torch.held_weight import RECIPES, HeldWeight, become_held, held, may_be_held, quantize_again
from octile.torch.transposed import TransposedLinear
from octile.torch.weights import forget


def primary_fp8(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    master: str = "fp32",
    checkpoint: torch.dtype | None = None,
) -> Primary:
    """Holds the weights of the model's FP8 layers in FP8 from now on, one byte an element, and trains them through
    float32 masters. Returns a ``Primary``, which reports the changes.

    The training loop stays as it is. Each weight stays the same ``nn.Parameter`` in the layer and in the optimizer's
    groups, now a ``HeldWeight``: codes and scales, which the layer's GEMMs read, and a master. All other operations
    (``print``, ``norm``, ``set_fp8(False)``, exports) see the master rounded to the weight's dtype, and the codes are
    those of quantising these values. So outputs and gradients have the bits of the same layer with such a weight.
    Backward transposes the codes and frees the result.

    During a step the optimizer has the masters instead of the weights, with float32 gradients; afterwards all weights
    are quantised again. Gradients of another dtype are cast: 4 bytes an element while the step runs, none if the
    weights have a float32 ``main_grad``. ``GradScaler``, clipping, accumulation, groups, schedulers, closures and the
    variants of a ``torch.optim`` optimizer work as before; ``torch.compile`` of a step breaks the graph before and
    after it.

    optimizer: weights that are not in its groups do not change. It may have made steps: its state becomes float32. For
    an optimizer with ``param_groups`` but without the hooks of ``torch.optim``, call ``Primary.begin_step()`` and
    ``end_step()`` around each step. With None, all weights are held: give ``Primary.masters`` to the optimizer, and
    call the two around each step.

    Checkpoints. ``model.state_dict()`` has plain tensors under the same names, of dtype ``checkpoint``, by default the
    weight's; loading one writes the masters and quantises. ``optimizer.state_dict()`` additionally has, by ``master``:

    - "fp32": ``master``, float32.
    - "bf16+16": ``master_bits``, int16, the lower half of the master. With the model's bfloat16 entry it makes the
      master, so both checkpoints together take 2 bytes an element more than one of bfloat16. For weights in bfloat16.

    The model and the optimizer may be loaded in either order, and then the next steps have the bits of an uninterrupted
    run. If ``master_bits`` do not belong to the model's weights, the next step raises an error.

    Raises NotImplementedError for recipes whose transposed copy of a weight has other codes ("rowwise", "mxfp8"), and
    for "delayed", whose scales such layers do not take; ValueError for models without FP8 layers, on the meta device,
    sharded by FSDP, or whose weights autograd, a hook or a compiled model holds: call it after ``convert``, and before
    the model is compiled, wrapped or called. Copies of the model are held in FP8 too; give their optimizer to
    another call.
    """
    check_model(model)
    master = one_of("master", master, FORMS)
    if checkpoint is not None and checkpoint not in FLOATS:
        raise refuse("checkpoint", checkpoint, "are None, torch.bfloat16, torch.float16 and torch.float32")
    groups = None if optimizer is None else _groups_of(optimizer)
    primary = Primary(optimizer, master)
    chosen = _choose(model, groups, primary, master)
    _check_free(chosen)
    for name, (layer, weight) in chosen.items():
        if not held(weight):
            forget(weight)
            try:
                become_held(weight, layer.recipe.weight)
            except RuntimeError as error:
                raise _in_use(name, str(error)) from None
        weight.octile_checkpoint = checkpoint
        primary.weights[name] = weight
    return primary if optimizer is None else primary._attached()


def _groups_of(optimizer: object) -> list[dict]:
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, list):
        raise wrong_type("optimizer", optimizer, "torch.optim.Optimizer, one with param_groups, or None")
    return groups


def _choose(model, groups, primary: Primary, master: str) -> dict[str, tuple[Layer, nn.Parameter]]:
    """Returns the weights to hold, each under its first name. Those that stay are said to ``primary``."""
    known = None if groups is None else {id(p) for group in groups for p in group["params"]}
    chosen: dict[str, tuple[Layer, nn.Parameter]] = {}
    seen: set[int] = set()
    for prefix, layer in model.named_modules():
        if not isinstance(layer, Layer) or layer._code is None or id(layer.weight) in seen:
            continue
        weight, name = layer.weight, f"{prefix}.weight" if prefix else "weight"
        seen.add(id(weight))
        if isinstance(layer, TransposedLinear):
            primary.skipped[name] = "lies [in, out]"
            continue
        if not may_be_held(layer.recipe):
            raise NotImplementedError(
                f"octile: {name} is of recipe {layer.recipe.name!r}; held in FP8 are weights of the recipes "
                f"{', '.join(sorted({r.removesuffix(':f32') for r in RECIPES}))}, whose transposed codes are the same "
                "and whose scales the weight alone decides"
            )
        _check_weight(name, weight, master)
        if known is not None and id(weight) not in known:
            primary.skipped[name] = "is not in the optimizer's groups"
        else:
            chosen[name] = layer, weight
    if not chosen:
        what = "whose FP8 layers' weights are not in the optimizer" if primary.skipped else "without FP8 layers"
        raise refuse("model", f"one {what}", "is one that octile.torch.convert has converted, with its optimizer")
    return chosen


def _check_weight(name: str, weight: nn.Parameter, master: str) -> None:
    if hasattr(weight, "to_local"):
        raise refuse(name, type(weight).__name__, "is a plain tensor: models that FSDP shards are not held in FP8")
    if weight.is_meta:
        raise refuse(name, "on the meta device", "is one in memory")
    if master == "bf16+16" and weight.dtype != torch.bfloat16:
        raise refuse("master", master, f"is 'fp32', because {name} is {weight.dtype}: two halves are of bfloat16")


def _check_free(chosen: dict[str, tuple[Layer, nn.Parameter]]) -> None:
    """Raises ValueError for tensors with hooks, which would stay behind."""
    for name, (_, weight) in chosen.items():
        if not held(weight) and (weight._backward_hooks or weight._post_accumulate_grad_hooks):
            raise _in_use(name, "it has hooks")


def _in_use(name: str, why: str) -> ValueError:
    allowed = "is a weight that nothing else holds: call primary_fp8 before the model is compiled, wrapped or called"
    return refuse(name, f"in use ({why})", allowed)


@dataclass
class Primary:
    """The weights that ``primary_fp8`` holds in FP8, and the steps of their optimizer."""

    optimizer: Any
    master: str
    weights: dict[str, HeldWeight] = field(default_factory=dict)  #: by their first names in the model
    skipped: dict[str, str] = field(default_factory=dict)  #: weights of FP8 layers that stay, and why
    # The lists of the optimizer in which masters stand, the places, and the weights that belong there.
    _standing: list[tuple[list, int, HeldWeight]] = field(default_factory=list, repr=False)

    @property
    def masters(self) -> dict[str, torch.Tensor]:
        """The float32 masters of the weights, by name."""
        return {name: weight.master for name, weight in self.weights.items()}

    def __str__(self) -> str:
        count = sum(weight.numel() for weight in self.weights.values())
        lines = [
            f"{len(self.weights)} weights are held in FP8, one byte an element, with masters of 4: {count} elements"
        ]
        return "\n".join(lines + [f"  {name} {why}" for name, why in self.skipped.items()])

    # ---- steps

    @torch.no_grad()
    def begin_step(self) -> None:
        """Call it before a step: puts the masters, with float32 gradients, in place of the weights in the optimizer's
        groups and state. Without an optimizer, the masters only get their gradients."""
        self._stand_in()
        weights = self._weights_of_step()
        MasterState.check(weights)
        _hand_over(weights)

    @torch.no_grad()
    def end_step(self) -> None:
        """Call it after a step: puts the weights back, and quantises those with gradients, or whose masters PyTorch has
        counted as written."""
        weights = self._weights_of_step()
        changed = [w for w in weights if w.master.grad is not None or w.master._version != _known_version(w)]
        for weight in weights:
            weight.master.grad = None
        self._stand_back()
        quantize_again(changed)
        for weight in changed:
            weight.octile_version = weight.master._version
            torch.autograd.graph.increment_version(weight)

    def _weights_of_step(self) -> list[HeldWeight]:
        if self.optimizer is None:
            return list(self.weights.values())
        return list({id(weight): weight for *_, weight in self._standing}.values())

    def _stand_in(self) -> None:
        self._stand_back()  # if the last step has raised an error
        if self.optimizer is None:
            return
        state = getattr(self.optimizer, "state", {})
        for group in self.optimizer.param_groups:
            for i, weight in enumerate(group["params"]):
                if isinstance(weight, HeldWeight) and weight.master is not None:
                    group["params"][i] = weight.master
                    self._standing.append((group["params"], i, weight))
                    if weight in state:
                        state[weight.master] = state.pop(weight)

    def _stand_back(self) -> None:
        state = getattr(self.optimizer, "state", {})
        for params, i, weight in self._standing:
            params[i] = weight
            if weight.master in state:
                state[weight] = state.pop(weight.master)
        self._standing.clear()

    # ---- hooks

    def _attached(self) -> Primary:
        """Registers the hooks of the optimizer. Returns what an earlier call for it has returned, if there was one,
        which then knows these weights too."""
        optimizer = self.optimizer
        for weight in self.weights.values():
            _in_float32(getattr(optimizer, "state", {}).get(weight), weight.dtype)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return self
        earlier = getattr(optimizer, "octile_primary", None)
        if earlier is not None:
            earlier.master, earlier.skipped = self.master, self.skipped
            earlier.weights |= self.weights
            return earlier
        optimizer.octile_primary = self
        optimizer.register_step_pre_hook(torch.compiler.disable(self._before_step, reason="Octile: FP8 weights"))
        optimizer.register_step_post_hook(torch.compiler.disable(self._after_step, reason="Octile: FP8 weights"))
        state = MasterState(lambda: self.master, self._stand_in, self._stand_back)
        optimizer.register_state_dict_pre_hook(lambda _: self._stand_back())
        optimizer.register_state_dict_post_hook(state.saved)
        optimizer.register_load_state_dict_pre_hook(state.begin_load)
        optimizer.register_load_state_dict_post_hook(state.end_load)
        return self

    def _before_step(self, optimizer, args, kwargs):
        self.begin_step()
        args, kwargs = tuple(self._around(value) for value in args), dict(kwargs)
        if kwargs.get("closure") is not None:
            kwargs["closure"] = self._around(kwargs["closure"])
        return args, kwargs

    def _after_step(self, *_) -> None:
        self.end_step()

    def _around(self, closure: Any) -> Any:
        """Returns a closure, which computes gradients of the weights, as a step calls it; others as they are."""
        if not callable(closure) or isinstance(closure, torch.optim.Optimizer):
            return closure

        def called():
            self.end_step()
            result = closure()
            self.begin_step()
            return result

        return called


def _known_version(weight: HeldWeight) -> int:
    """Returns the version of the master that the codes were made of in the last step, or -1."""
    return getattr(weight, "octile_version", -1)


def _in_float32(state: dict | None, dtype: torch.dtype) -> None:
    """Casts what an optimizer has kept of a parameter of this dtype."""
    for key, value in ({} if state is None else state).items():
        if isinstance(value, torch.Tensor) and key != "step" and value.dtype == dtype:
            state[key] = value.float()


def _hand_over(weights: list[HeldWeight]) -> None:
    """Gives masters the gradients of their weights in float32. Casts are a few launches for all of them."""
    casts: dict[torch.device, tuple[list, list]] = {}
    for weight in weights:
        gradient, main_grad = weight.grad, getattr(weight, "main_grad", None)
        if main_grad is not None:
            gradient = main_grad if gradient is None else main_grad.float() + gradient  # of passes without FP8
        if gradient is None or gradient.dtype == torch.float32:
            weight.master.grad = gradient
            continue
        weight.master.grad = torch.empty_like(weight.master)
        into, of = casts.setdefault(weight.device, ([], []))
        into.append(weight.master.grad)
        of.append(gradient)
    for into, of in casts.values():
        torch._foreach_copy_(into, of)
