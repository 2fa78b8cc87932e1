"""Random sequences of events of a model: after each event its outputs are those of its weights as they are now.

``python tests/python/test_any_sequence.py COUNT [FIRST]`` runs COUNT sequences. The test runs a few, and 10,000 with
OCTILE_TESTS=all.
"""

from __future__ import annotations

import copy
import io
import os
import random
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import octile.torch as ot

EVENTS, FEW, MANY = 8, 150, 10_000
WIDTH, OUT, TOKENS = 64, 32, 5


class Pair:
    """A converted model and its twin of ``nn.Linear``, whose weights have the same bits."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.random = random.Random(seed)
        self.twin = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, OUT, bias=False))
        self.model = copy.deepcopy(self.twin)
        copies = self.random.choice(("none", "rowwise", "both", "both"))
        report = ot.convert(self.model, min_dims=16, preset="all-linear", weights=copies)
        assert list(report.converted) == ["0", "2"]
        self.autocast, self.compiled, self.doubles, self.done = False, None, None, []
        self.start_optimizers()

    def start_optimizers(self) -> None:
        kind = self.random.choice((torch.optim.SGD, torch.optim.AdamW))
        self.optimizers = [kind(model.parameters(), lr=1e-2) for model in (self.twin, self.model)]

    def both(self):
        return self.twin, self.model

    def pick(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Returns the weight of a layer in both models."""
        index = self.random.choice((0, 2))
        return self.twin[index].weight, self.model[index].weight

    def input(self) -> torch.Tensor:
        return torch.randn(TOKENS, WIDTH)

    def call(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return model(x)

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the converted model computes of its weights, with copies of FP8 that nobody has kept."""
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            for layer in self.model:
                if isinstance(layer, ot.Linear):
                    x = ot.linear(x, layer.weight.clone(), layer.bias, layer.recipe)
                    x = x * 2 if layer is self.doubles else x
                else:
                    x = layer(x)
        return x

    def check(self) -> None:
        x = self.input()
        for ours, theirs in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            assert ours.equal(theirs)
        wanted = self.expected(x)
        with torch.set_grad_enabled(self.random.random() < 0.3):
            calls = [self.call(self.model, x) for _ in range(self.random.choice((1, 1, 2)))]
            plain = self.call(self.twin, x)
            if self.compiled is not None:
                calls.append(self.call(self.compiled, x))
        for y in calls:
            assert y.equal(wanted), "stale"
        assert (wanted - plain).norm() <= 0.25 * plain.norm() + 1e-6  # two roundings to e4m3


def changed_like(weight: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(weight) * weight.detach().abs().mean().clamp(0.01, 10)


def step(pair: Pair, through=lambda model, x: model(x)) -> None:
    x = pair.input()
    losses = [pair.call(lambda x, model=model: through(model, x), x).square().sum() for model in pair.both()]
    for optimizer, loss in zip(pair.optimizers, losses, strict=True):
        optimizer.zero_grad()
        loss.backward()
    for theirs, ours in zip(pair.twin.parameters(), pair.model.parameters(), strict=True):
        assert (theirs.grad - ours.grad).norm() <= 0.5 * theirs.grad.norm() + 1e-6
        theirs.grad.copy_(ours.grad)
    for optimizer in pair.optimizers:
        optimizer.step()


def accumulate(pair: Pair) -> None:
    for _ in range(2):
        pair.call(pair.model, pair.input()).sum().backward()
    step(pair)


def checkpointed(pair: Pair) -> None:
    step(pair, lambda model, x: checkpoint(model, x, use_reentrant=False))


def write_data(pair: Pair) -> None:
    theirs, ours = pair.pick()
    new = changed_like(theirs)
    for weight in (theirs, ours):
        weight.data.copy_(new)


def write_one_element(pair: Pair) -> None:
    theirs, ours = pair.pick()
    row, column = pair.random.randrange(theirs.shape[0]), pair.random.randrange(theirs.shape[1])
    for weight in (theirs, ours):
        weight.data[row, column] += 1


def write_in_place(pair: Pair) -> None:
    with torch.no_grad():
        for weight in pair.pick():
            weight.mul_(-1)


def collective(pair: Pair) -> None:
    theirs, ours = pair.pick()
    new = changed_like(theirs)
    with torch.no_grad():
        for weight in (theirs, ours):
            dist.all_gather_into_tensor(weight, new)


def merge(pair: Pair) -> None:
    """Adds low-rank weights as peft does, computes with them, and takes them out again."""
    theirs, ours = pair.pick()
    delta = torch.randn(theirs.shape[0], 2) @ torch.randn(2, theirs.shape[1]) * theirs.detach().abs().mean()
    for weight in (theirs, ours):
        weight.data += delta
    pair.check()
    for weight in (theirs, ours):
        weight.data -= delta


def swap(pair: Pair) -> None:
    """Evaluates averaged weights, written into the parameters' memory or put in its place, and brings back the others."""
    averages = [parameter.detach() * 0.5 for parameter in pair.twin.parameters()]
    exchanges = pair.random.random() < 0.5
    former = []
    for model in pair.both():
        parameters = list(model.parameters())
        former.append([p.data if exchanges else p.data.clone() for p in parameters])
        for parameter, average in zip(parameters, averages, strict=True):
            if exchanges:
                parameter.data = average.clone()
            else:
                parameter.data.copy_(average)
    pair.check()
    for model, values in zip(pair.both(), former, strict=True):
        for parameter, value in zip(model.parameters(), values, strict=True):
            if exchanges:
                parameter.data = value
            else:
                parameter.data.copy_(value)


def load(pair: Pair) -> None:
    state = {name: changed_like(value) for name, value in pair.twin.state_dict().items()}
    assign = pair.random.random() < 0.5
    for model in pair.both():
        model.load_state_dict({name: value.clone() for name, value in state.items()}, assign=assign)
    if assign:
        pair.start_optimizers()


def to_another_type(pair: Pair) -> None:
    for model in pair.both():
        model.to(torch.float64).to(torch.float32).to(torch.bfloat16).to(torch.float32)


def deep_copy(pair: Pair) -> None:
    pair.model, pair.twin = copy.deepcopy(pair.model), copy.deepcopy(pair.twin)
    pair.compiled = None
    pair.doubles = next((m for m in pair.model if isinstance(m, ot.Linear) and m._forward_hooks), None)
    pair.start_optimizers()


def save_and_load(pair: Pair) -> None:
    file = io.BytesIO()
    torch.save(pair.model.state_dict(), file)
    pair.model.load_state_dict(torch.load(io.BytesIO(file.getvalue())))


def switch_mode(pair: Pair) -> None:
    for model in pair.both():
        model.train(not model.training)


def switch_autocast(pair: Pair) -> None:
    pair.autocast = not pair.autocast


def switch_hook(pair: Pair) -> None:
    if pair.doubles is not None:
        return
    index = pair.random.choice((0, 2))
    for model in pair.both():
        model[index].register_forward_hook(double)
    pair.doubles = pair.model[index]
    pair.compiled = None  # torch.compile does not look for hooks of layers again


def double(module, inputs, output):
    return output * 2


def flatten(pair: Pair) -> None:
    """Moves all parameters into one buffer, as sharding frameworks do."""
    for model in pair.both():
        parameters = list(model.parameters())
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        begin = 0
        for parameter in parameters:
            parameter.data = flat[begin : begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()


def compile_model(pair: Pair) -> None:
    torch._dynamo.reset()
    pair.compiled = torch.compile(pair.model, backend="eager", fullgraph=pair.doubles is None)


OFTEN = (
    step, step, accumulate, checkpointed, write_data, write_data, write_one_element, write_in_place, collective, merge,
    swap, load, to_another_type, deep_copy, save_and_load, switch_mode, switch_autocast, switch_hook, flatten,
)  # fmt: skip
SELDOM = (compile_model,)  # it takes as long as 100 others


def run(seed: int) -> None:
    pair = Pair(seed)
    try:
        pair.check()
        for _ in range(EVENTS):
            event = pair.random.choice(SELDOM if pair.random.random() < 0.01 else OFTEN)
            pair.done.append(event.__name__)
            event(pair)
            pair.check()
    except Exception as error:
        raise AssertionError(f"sequence {seed}, after {', '.join(pair.done)}") from error


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_outputs_are_those_of_the_weights_as_they_are(one_process):
    for seed in range(MANY if os.environ.get("OCTILE_TESTS") == "all" else FEW):
        run(seed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in range(first, first + count):
        run(seed)
    print(f"{count} sequences, 0 stale")
