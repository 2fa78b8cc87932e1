"""``sentry``: notices products that are not finite, and lets their step be repeated or skipped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from octile._types import refuse, wrong_type
from octile.torch._arguments import check_model
from octile.torch.checked import checked_experts, checked_linear
from octile.torch.derivatives import is_transformed
from octile.torch.functional import linear_of
from octile.torch.grouped import as_rows, experts_of
from octile.torch.layer import Layer
from octile.torch.scaling import is_capturing
from octile.torch.watch import Watch, watch_of

_Result = TypeVar("_Result")


class Counts(NamedTuple):
    """How often products of a layer were not finite."""

    output: int
    input_gradient: int
    weight_gradient: int


@dataclass(eq=False)
class _Board:
    """The words of the layers on one device, and their sums: int32 and int64 [layers, 3]."""

    layers: list[str]
    words: torch.Tensor  #: that products mark; with check="call" of the last call alone
    stays: torch.Tensor  #: with check="call": marks of this step's results that are not finite without FP8 either
    sums: torch.Tensor
    exchanged: list[bool]  #: layers whose results and input gradients mark each other's word

    def counts(self, rows: list[list[int]]) -> dict[str, Counts]:
        """Returns what ``rows`` of sums say, by the names of layers."""
        return {
            name: Counts(row[1], row[0], row[2]) if exchanged else Counts(*row)
            for name, row, exchanged in zip(self.layers, rows, self.exchanged, strict=True)
        }


class _News:
    """Copies on the host of the device's counts, which arrive behind the work before them."""

    def __init__(self, total: torch.Tensor, sums: list[torch.Tensor]) -> None:
        pin = total.device.type == "cuda"
        self.total = torch.zeros_like(total, device="cpu", pin_memory=pin)
        self.sums = [torch.zeros_like(one, device="cpu", pin_memory=pin) for one in sums]
        self._event = torch.cuda.Event() if pin else None

    def send(self, total: torch.Tensor, sums: list[torch.Tensor]) -> None:
        for mine, one in zip((self.total, *self.sums), (total, *sums), strict=True):
            # By the first device, whose stream the event is of.
            mine.copy_(one.to(total.device, non_blocking=True), non_blocking=True)
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(total.device))

    def arrived(self) -> bool:
        """Returns whether all that was sent is there, and may be read until the next ``send``."""
        return self._event is None or self._event.query()


class _Watch(Watch):
    """The sentry's words of a layer, and its counts for it."""

    def __init__(self, sentry: Sentry, board: _Board, index: int) -> None:
        super().__init__(board.words[index])
        self.sentry, self.sums, self.stays = sentry, board.sums[index], board.stays[index]
        self.each_call = sentry.check == "call"

    def linear(self, x, weight, bias, code, scaling, plain=0) -> torch.Tensor:
        if not self.each_call:
            return linear_of(x, weight, bias, code, scaling, self.words, plain=plain)
        self._check_eager(x)
        return checked_linear(x, weight, bias, code, scaling, self.words, self._failed, self._settle, plain)

    def experts(self, x, weight, offsets, code, scaling, transposed=False, plain=0) -> torch.Tensor:
        if not self.each_call:
            return experts_of(x, weight, offsets, code, scaling, self.words, transposed, plain)
        self._check_eager(x)
        weight = as_rows(weight, transposed)
        return checked_experts(x, weight, offsets, code, scaling, self.words, self._failed, self._settle, plain)

    @staticmethod
    def _check_eager(x: torch.Tensor) -> None:
        if is_transformed() or torch.compiler.is_compiling() or is_capturing(x.device):
            raise RuntimeError(
                "octile: a sentry with check='call' reads each product on the host, which torch.compile, CUDA graphs "
                "and torch.func cannot; use check='step'"
            )

    def _failed(self, product: int) -> bool:
        if not self.words[product].item():
            return False
        self.words[product] = 0
        self.sums[product] += 1
        self.sentry._say(self.sentry.steps + 1)
        return True

    def _settle(self, product: int, result: torch.Tensor) -> torch.Tensor:
        self.stays[product] |= ~torch.isfinite(result.detach()).all()
        return result


class _FunctionWeight:
    """A parameter that functions take, watched as a layer is."""

    fp8 = True

    def __init__(self, weight: nn.Parameter) -> None:
        self.weight = weight

    def parameters(self) -> Iterable[nn.Parameter]:
        return (self.weight,)

    @property
    def _watch(self) -> Watch | None:
        return watch_of(self.weight)

    @_watch.setter
    def _watch(self, watch: Watch | None) -> None:
        self.weight.octile_watch = watch  # type: ignore[attr-defined]


def _function_weights(model: nn.Module, patterns: Iterable[str]) -> list[tuple[str, _FunctionWeight]]:
    """Returns the parameters with these names."""
    if isinstance(patterns, str):
        raise refuse("weights", patterns, "are lists of names")
    if not isinstance(patterns, Iterable):
        raise wrong_type("weights", patterns, "a list of names")
    found: dict[str, _FunctionWeight] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise wrong_type("a name of weights", pattern, "str")
        here = {name: p for name, p in model.named_parameters() if fnmatchcase(name, pattern)}
        if not here:
            raise refuse("weights", pattern, f"are names of parameters of {type(model).__name__}, and patterns of them")
        for name, parameter in here.items():
            if type(parameter) is not nn.Parameter:
                kind = type(parameter).__name__
                raise refuse(
                    f"weights: type of {name!r}", kind, "is Parameter; FSDP2's are watched in Linear and Experts"
                )
            found[name] = _FunctionWeight(parameter)
    return list(found.items())


def _is_group(group: object) -> bool:
    return torch.distributed.is_available() and isinstance(group, torch.distributed.ProcessGroup)


class Sentry:
    """Watches the GEMM results (output, input gradients, weight gradients) of a model's FP8 layers; see ``sentry``.

    found_nonfinite: float32 [], on the device of the first layer, always the same tensor. 1 if the step that ``step``
    or ``run`` ended must not be used, else 0. Fused optimizers skip such a step on the device if it is their
    ``found_inf``, as ``torch.amp.GradScaler`` sets it.
    """

    def __init__(self, model: nn.Module, check: str, retreat: int, group, weights: Iterable[str] = ()) -> None:
        check_model(model)
        if check not in ("step", "call"):
            raise refuse("check", check, "are 'step' and 'call'")
        if not isinstance(retreat, int) or isinstance(retreat, bool) or retreat < 0:
            raise refuse("retreat", retreat, "are integers of at least 0")
        if group is not None and not isinstance(group, bool) and not _is_group(group):
            raise wrong_type("group", group, "torch.distributed.ProcessGroup, False or None")
        self.model, self.check, self.retreat, self.group = model, check, retreat, group
        named = [(n, m) for n, m in model.named_modules() if isinstance(m, Layer) and m._code is not None]
        named += _function_weights(model, weights)
        if not named:
            raise refuse("model", type(model).__name__, "is a model with octile.torch.Linear or Experts in it")
        for name, layer in named:
            if layer.weight.device.type == "meta":
                raise refuse(f"{name or 'model'}.weight.device", "meta", "are devices with memory")
            if layer._watch is not None:
                raise refuse("model", type(model).__name__, "is a model without a sentry; call its remove() first")
        self.layers = [layer for _, layer in named]
        self._boards = self._place(named)
        first = self._boards[0].words.device
        self.found_nonfinite = torch.zeros((), dtype=torch.float32, device=first)
        self.steps = 0  #: ended
        self.repeated = 0  #: steps that ``run`` ran again without FP8
        self._total = torch.zeros((), dtype=torch.int64, device=first)  # steps that were not finite
        self._news: _News | None = None
        self._noticed = 0
        self._left = 0  # steps of a retreat
        self._said = False

    def _place(self, named: list[tuple[str, Layer | _FunctionWeight]]) -> list[_Board]:
        boards = []
        for device in dict.fromkeys(layer.weight.device for _, layer in named):
            here = [(name, layer) for name, layer in named if layer.weight.device == device]
            words = torch.zeros(len(here), 3, dtype=torch.int32, device=device)
            exchanged = [self.check == "step" and getattr(layer, "is_exchanged", False) for _, layer in here]
            board = _Board([name for name, _ in here], words, words.clone(), words.long(), exchanged)
            for index, (_, layer) in enumerate(here):
                layer._watch = _Watch(self, board, index)
            boards.append(board)
        return boards

    def remove(self) -> None:
        """Stops watching. The counts stay."""
        for layer in self.layers:
            layer._watch = None
        self.layers = []

    @property
    def counts(self) -> dict[str, Counts]:
        """By layer name, the number of steps (with check="call": of calls) in which each result was not finite. Waits
        for the device. Counts a step once it has ended."""
        return self._counts(None)

    def _counts(self, sums: list[torch.Tensor] | None) -> dict[str, Counts]:
        sums = [board.sums for board in self._boards] if sums is None else sums
        counts: dict[str, Counts] = {}
        for board, rows in zip(self._boards, sums, strict=True):
            counts |= board.counts(rows.tolist())
        return counts

    # ---- ending a step

    def step(self) -> torch.Tensor:
        """Ends a step, after its last backward pass. Returns ``found_nonfinite``, and does not wait for the device.

        The host reads the outcome later: at the first call that finds the device done with that step, usually the next
        one, and on the CPU at once. It then warns, and the next ``retreat`` steps compute without FP8.
        """
        self._end()
        if not is_capturing(self._total.device):
            self._report()
        return self.found_nonfinite

    def run(self, closure: Callable[[], _Result]) -> _Result:
        """Runs a step, and runs it again without FP8 if a result was not finite. Returns the closure's result.

        closure: sets all gradients (``main_grad`` too) to None or zero, runs forward and backward of all microbatches,
        and may be called twice; it does not step the optimizer. Afterwards ``found_nonfinite`` says whether the model's
        gradients are still not finite. Waits for the device once a step.
        """
        if not callable(closure):
            raise wrong_type("closure", closure, "a function without arguments")
        if is_capturing(self._total.device):
            raise RuntimeError("octile: Sentry.run reads the step's result on the host; capture closure, not run")
        result = closure()
        self._end()
        self._noticed = int(self._total)
        if not self.found_nonfinite.item():
            return result
        self._say(self.steps)
        self.repeated += 1
        self._pause(True)
        try:
            result = closure()
        finally:
            self._pause(self._left > 0)
        self._find(*_nonfinite_gradients(self.model.parameters()))
        return result

    def _end(self) -> None:
        self.steps += 1
        flags = []
        for board in self._boards:
            if self.check == "step":
                board.sums += board.words
            flags += [board.words.amax(), board.stays.amax()]
            board.words.zero_()
            board.stays.zero_()
        # Layers without FP8 have no words; their gradients show what their products were.
        plain = [layer for layer in self.layers if not layer.fp8 or layer._watch.paused or layer._watch.was_plain]
        for layer in plain:
            layer._watch.was_plain = False
        self._find(*flags, *_nonfinite_gradients(p for layer in plain for p in layer.parameters()))
        self._total += self.found_nonfinite.long()

    def _find(self, *flags: torch.Tensor) -> None:
        """Sets ``found_nonfinite``, for all ranks the same."""
        device = self.found_nonfinite.device
        flags = [flag.to(device, torch.float32) for flag in flags]
        self.found_nonfinite.copy_(torch.stack(flags).amax()) if flags else self.found_nonfinite.zero_()
        if self.group is not False and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.found_nonfinite, torch.distributed.ReduceOp.MAX, self.group)

    def _notice(self) -> bool:
        """Returns whether the host has heard of another step that was not finite."""
        if self._news is None:
            return False
        heard = self._news.arrived() and int(self._news.total) > self._noticed
        if heard:
            self._noticed = int(self._news.total)
        return heard

    def _ask(self) -> None:
        """Lets news of all steps so far come to the host, unless older news is on the way."""
        if self._news is None:
            self._news = _News(self._total, [board.sums for board in self._boards])
        if self._news.arrived():
            self._news.send(self._total, [board.sums for board in self._boards])

    def _report(self) -> None:
        """Warns of the counts that reach the host, and begins or ends a retreat."""
        heard = False
        for ask in (True, False):  # what it reads must not be on the way, and on the CPU is there at once
            if self._notice():
                heard = True
                self._say(self.steps, self._news.sums)
            if ask:
                self._ask()
        self._left = self.retreat if heard else max(self._left - 1, 0)
        self._pause(self._left > 0)

    def _pause(self, paused: bool) -> None:
        for layer in self.layers:
            layer._watch.paused = paused

    def _say(self, step: int, sums: list[torch.Tensor] | None = None) -> None:
        """Warns, the first time. sums: the boards', if the host has them, so that it need not wait."""
        if self._said:
            return
        self._said = True
        bad = [name for name, counts in self._counts(sums).items() if any(counts)]
        what = f"products of {len(bad)} layers, the first of them {bad[0]!r}," if bad else "gradients"
        warnings.warn(
            f"octile: {what} were not finite by step {step}; Sentry.counts has all of them, and this is said once",
            stacklevel=3,
        )


def _nonfinite_gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """Returns for each gradient that there is whether an element is NaN or infinite: bool [], on its device."""
    gradients = [g for p in parameters for g in (p.grad, getattr(p, "main_grad", None)) if g is not None]
    gradients = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    return [~torch.isfinite(g).all() for g in gradients]


def sentry(
    model: nn.Module,
    check: str = "step",
    retreat: int = 0,
    group: torch.distributed.ProcessGroup | bool | None = None,
    weights: Iterable[str] = (),
) -> Sentry:
    """Watches the GEMM results of every ``Linear`` and ``Experts`` of ``model`` for NaN and infinity, until
    ``remove()``.

    >>> watch = octile.torch.sentry(model)
    >>> loss = watch.run(step)  # step: zero the gradients, forward, backward
    >>> if not watch.found_nonfinite:
    ...     optimizer.step()

    check="step": GEMMs set a word on the device, and the host does not wait for each. If a result was not finite,
    ``run`` repeats the step without FP8; ``step`` only reports it, for optimizers that skip on the device.
    check="call": the host reads the word of every GEMM, and recomputes a result that is not finite in the input's
    dtype, before the next layer uses it. That is slow on a GPU, and refused under torch.compile and capture. A weight
    gradient is then computed from the FP8 copy of X, because a layer keeps no other.

    If operands are not finite themselves, the result is not finite without FP8 either. Such a step can only be skipped:
    ``found_nonfinite`` stays 1.

    retreat: the number of steps without FP8 after a bad step that ``step`` has found. group: ranks that share their
    findings, by default all ranks if there are any; False for none, if every rank may repeat or skip alone.

    weights: names of parameters, or patterns such as ``"layers.*.mlp.w1"``, that the functions ``linear`` and
    ``experts`` take as their weight. Their calls are watched as layers are, and counted by these names.

    Create it when the model is on its devices, and use it from one thread. Layers that compute without FP8 are watched
    through their gradients. Copies of the model and of its layers have no sentry.
    """
    return Sentry(model, check, retreat, group, weights)
