"""When a GPU's FP8 copies of weights are made, and who waits for them: streams, threads, replays of CUDA graphs,
and FSDP2.

    python weights.py
    python weights.py --device cpu     # the checks that need no GPU

Every check compares bits with a layer that shares nothing. Prints a line a check, and exits with 1 if one fails. Times,
beside BF16, of weights that are compared by each pass and of weights that are trusted: microbatches between two steps,
eager and replayed, and decoding by replays.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
import torch.distributed as dist
from checks import all_hold, equal, passes
from records import Records, add_option, peer_of, protocol_of
from timing import interleaved
from torch import nn
from torch.distributed.fsdp import fully_shard

import octile.torch as ot

quantizations = torch.ops.octile.weight_quantizations


def layer_of(device: str, n: int, k: int, recipe: str = "blockwise") -> ot.Linear:
    return ot.Linear(k, n, bias=False, device=device, dtype=torch.bfloat16, recipe=recipe)


def fresh(layer: ot.Linear, x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    """Returns y, dx and dw of a layer that nobody keeps copies of."""
    x = x.detach().requires_grad_()
    weight = layer.weight.detach().clone().requires_grad_()
    y = ot.linear(x, weight, recipe=layer.recipe)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), dy)]


def threads(device: str, n: int, k: int) -> bool:
    """Threads with streams of their own use the copies that one of them makes."""
    layer = layer_of(device, n, k)
    x, dy = torch.randn(300, k, device=device).bfloat16(), torch.randn(300, n, device=device).bfloat16()

    def one(_) -> list[torch.Tensor]:
        if device == "cpu":
            return passes(layer, x, dy)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            made = passes(layer, x, dy)
        stream.synchronize()
        return made

    good = True
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            layer.weight.data.neg_()
            wanted = fresh(layer, x, dy)
            if device == "cuda":
                torch.cuda.synchronize()
            before = quantizations()
            good &= all(equal(made, wanted) for made in pool.map(one, range(8)))
            good &= quantizations() == before + 1
    return good


def streams(n: int, k: int) -> bool:
    """A stream waits for copies that a busy stream makes, and memory is not given away under it."""
    good = True
    layer = layer_of("cuda", n, k)
    x, dy = torch.randn(300, k, device="cuda").bfloat16(), torch.randn(300, n, device="cuda").bfloat16()
    wanted = [fresh(layer, x, dy)]
    with torch.no_grad():
        layer.weight.mul_(2)
    wanted.append(fresh(layer, x, dy))
    with torch.no_grad():
        layer.weight.div_(2)
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    big = torch.randn(8192, 8192, device="cuda").bfloat16()
    big @ big
    torch.cuda.synchronize()
    for turn in range(6):
        before = quantizations()
        with torch.cuda.stream(a):
            for _ in range(5):
                big @ big  # some milliseconds, in which b would read copies that are not made
            first = passes(layer, x, dy)
        with torch.cuda.stream(b):
            second = passes(layer, x, dy)
            for _ in range(5):
                big @ big
            third = passes(layer, x, dy)
        good &= quantizations() - before in (1, 2)  # new to PyTorch, and the first one that is compared
        # The weight changes behind both, its old copies go, and others take their memory on a.
        a.wait_stream(b)
        with torch.cuda.stream(a), torch.no_grad():
            layer.weight.mul_(2 if turn % 2 == 0 else 0.5)
            with torch.enable_grad():
                passes(layer, x, dy)
            torch.full((4 * n * k,), 255, dtype=torch.uint8, device="cuda")
            layer.weight.add_(0)  # new to PyTorch, the same to us
        torch.cuda.synchronize()
        good &= all(equal(made, wanted[turn % 2]) for made in (first, second, third))
    return good


class Captured:
    """A microbatch in a CUDA graph, or a forward pass."""

    def __init__(self, layer: ot.Linear, x: torch.Tensor, dy: torch.Tensor | None) -> None:
        self.layer, self.x, self.dy = layer, x, dy
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.made = self.run()

    def run(self) -> list[torch.Tensor]:
        if self.dy is not None:
            return passes(self.layer, self.x, self.dy)
        with torch.no_grad():
            return [self.layer(self.x)]

    def wanted(self) -> list[torch.Tensor]:
        if self.dy is not None:
            return fresh(self.layer, self.x, self.dy)
        with torch.no_grad():
            return [ot.linear(self.x, self.layer.weight.clone(), recipe=self.layer.recipe)]

    def replays_well(self) -> bool:
        """Replays twice, and compares with fresh copies both times."""
        good = True
        for _ in range(2):
            for tensor in self.made:
                tensor.zero_()
            self.graph.replay()
            good &= equal([t.clone() for t in self.made], self.wanted())
        return good


def replays(n: int, k: int, trusted: bool, recipe: str, decoding: bool = False) -> bool:
    """Replays of two graphs, eager steps between them, and every way in which a weight changes."""
    layer = layer_of("cuda", n, k, recipe)
    ot.trust_weights(layer, trusted)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    data = [
        (torch.randn(t, k, device="cuda").bfloat16(), torch.randn(t, n, device="cuda").bfloat16()) for t in (300, 77)
    ]
    graphs = [Captured(layer, x, None if decoding else dy) for x, dy in data]

    def step() -> None:
        layer.weight.grad = torch.randn_like(layer.weight)
        optimizer.step()

    def hidden() -> None:
        layer.weight.data.mul_(0.5)
        if trusted:
            ot.weights_changed()

    changes = {
        "nothing": lambda: None,
        "step": step,
        "eager between": lambda: passes(layer, *data[0]),
        "step, then eager": lambda: (step(), passes(layer, *data[0])),
        "hidden": hidden,
        "hidden, then a step": lambda: (hidden(), step()),
        "a step, then hidden": lambda: (step(), passes(layer, *data[0]), hidden()),
        "there and back": lambda: (hidden(), passes(layer, *data[0]), layer.weight.data.mul_(2), hidden()),
        "load_state_dict": lambda: layer.load_state_dict({"weight": torch.randn(n, k)}),
    }
    good = True
    for name, change in changes.items():
        change()
        ok = all(graph.replays_well() for graph in graphs) and equal(passes(layer, *data[1]), fresh(layer, *data[1]))
        if not ok:
            print(f"  differs after: {name}", flush=True)
        good &= ok
    if decoding and not trusted:
        torch.cuda.synchronize()
        before = quantizations()
        for graph in graphs:
            good &= graph.replays_well()
        good &= quantizations() == before + 2 * len(graphs)  # by fresh() alone
    return good


def captured_optimizer(n: int, k: int, trusted: bool) -> bool:
    """An optimizer's step in a graph of its own, captured before the graph of the microbatch."""
    layer = layer_of("cuda", n, k)
    ot.trust_weights(layer, trusted)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.weight.grad = torch.randn_like(layer.weight)
    optimizer.step()
    torch.cuda.synchronize()
    step = torch.cuda.CUDAGraph()
    with torch.cuda.graph(step):
        optimizer.step()
    x, dy = torch.randn(300, k, device="cuda").bfloat16(), torch.randn(300, n, device="cuda").bfloat16()
    graph, good = Captured(layer, x, dy), True
    for _ in range(3):
        good &= graph.replays_well() and equal(passes(layer, x, dy), fresh(layer, x, dy))
        step.replay()
        good &= graph.replays_well() and equal(passes(layer, x, dy), fresh(layer, x, dy))
    return good


def graph_trees(n: int, k: int) -> bool:
    """torch.compile(mode="reduce-overhead") trains as an eager model does."""
    models = [torch.nn.Sequential(layer_of("cuda", n, k), layer_of("cuda", k, n)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    forwards = [models[0], torch.compile(models[1], mode="reduce-overhead")]
    x = torch.randn(300, k, device="cuda").bfloat16()
    good = True
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        losses = []
        for forward, optimizer in zip(forwards, optimizers, strict=True):
            loss = forward(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
        good &= losses[0].equal(losses[1])
    return good and equal(list(models[0].parameters()), list(models[1].parameters()))


def is_skipped(n: int, k: int) -> bool:
    """A second replay does not quantise a weight that is trusted: it does not see a write that nobody told of."""
    layer = layer_of("cuda", n, k)
    ot.trust_weights(layer)
    x, dy = torch.randn(300, k, device="cuda").bfloat16(), torch.randn(300, n, device="cuda").bfloat16()
    graph = Captured(layer, x, dy)
    graph.graph.replay()
    before = graph.made[0].clone()
    layer.weight.data.mul_(2)
    graph.graph.replay()
    unseen = graph.made[0].equal(before)
    ot.weights_changed()
    graph.graph.replay()
    return unseen and not graph.made[0].equal(before)


def gathered(device: str, n: int, k: int, reshard: bool) -> bool:
    """Weights that FSDP2 gathers give the bits of others, and are quantised as often as
    docs/torch_reference.md says."""
    torch.manual_seed(0)
    model = nn.Sequential(layer_of(device, n, k), nn.GELU(), layer_of(device, k, n))
    sharded = copy.deepcopy(model)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, reshard_after_forward=reshard)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5, foreach=False) for one in (model, sharded)]
    good = True
    for _ in range(3):
        batches = [torch.randn(300, k, device=device).bfloat16() for _ in range(2)]
        counts = []
        for one, optimizer in zip((model, sharded), optimizers, strict=True):
            before = quantizations()
            for x in batches:
                one(x).square().mean().backward()
            counts.append(quantizations() - before)
            optimizer.step()
            optimizer.zero_grad()
        # Freed weights are quantised by each pass; the first layer's backward needs no weight.
        good &= counts == [2, 6 if reshard else 2]
        good &= equal(list(model.parameters()), [p.full_tensor() for p in sharded.parameters()])
    return good


@contextmanager
def one_rank(device: str) -> Iterator[None]:
    """Makes this process the only one of a group."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def time_microbatches(records: Records, n: int, k: int, tokens: int, count: int = 8) -> None:
    """Records the time of microbatches between two changes of the weight, eager and replayed."""
    x, dy = torch.randn(tokens, k, device="cuda").bfloat16(), torch.randn(tokens, n, device="cuda").bfloat16()
    layers = layers_of(n, k)

    def eager(layer):
        def step() -> None:
            layer.weight.detach().neg_()  # an optimizer's step, of every layer
            for _ in range(count):
                passes(layer, x, dy)

        return step

    def replayed(graph):
        def step() -> None:
            graph.layer.weight.detach().neg_()
            ot.weights_changed()
            for _ in range(count):
                graph.graph.replay()

        return step

    what = f"ot.Linear tokens={tokens} n={n} k={k} recipe=blockwise microbatches={count}"
    us = interleaved({name: eager(layer) for name, layer in layers.items()}, 10, 5)
    tell(records, what, "stream", "microbatches", us)
    us = interleaved({name: replayed(Captured(layer, x, dy)) for name, layer in layers.items()}, 10, 5)
    tell(records, what, "graph", "microbatches", us)


def time_forward(records: Records, n: int, k: int, tokens: int) -> None:
    """Records the time of a forward pass that is replayed, as in decoding."""
    x = torch.randn(tokens, k, device="cuda").bfloat16()
    graphs = {name: Captured(layer, x, None).graph for name, layer in layers_of(n, k).items()}
    us = interleaved({name: graph.replay for name, graph in graphs.items()}, 10, 50)
    tell(records, f"ot.Linear tokens={tokens} n={n} k={k} recipe=blockwise", "graph", "decoding", us)


def layers_of(n: int, k: int) -> dict[str, nn.Module]:
    """Returns a layer whose weight is compared, one whose weight is trusted, and one of BF16."""
    layers = {"compared": layer_of("cuda", n, k), "trusted": layer_of("cuda", n, k)}
    ot.trust_weights(layers["trusted"])
    return layers | {"bf16": nn.Linear(k, n, bias=False, device="cuda", dtype=torch.bfloat16)}


def tell(records: Records, what: str, timing: str, part: str, us: dict[str, list[float]]) -> None:
    times = {name: statistics.median(values) for name, values in us.items()}
    print(f"{what}, {part}, {timing}: " + ", ".join(f"{name} {value:.1f} us" for name, value in times.items()))
    peers = [peer_of("bf16", us["bf16"])]
    for name in ("compared", "trusted"):
        protocol = protocol_of(timing, 10, l2="warm")
        records.add(what, "us", us[name], protocol, part=f"{part}, weights {name}", peers=peers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="1024,2048", help="n,k of the checks")
    parser.add_argument("--no-times", action="store_true")
    add_option(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    n, k = map(int, options.size.split(","))
    checks = {"threads": lambda: threads(options.device, n, k)}
    if options.device == "cuda":
        checks |= {"streams": lambda: streams(n, k)}
        for recipe in ("blockwise", "tensorwise", "rowwise"):
            for trusted in (False, True):
                for decoding in (False, True):
                    name = f"replays, {recipe}{', trusted' if trusted else ''}{', decoding' if decoding else ''}"
                    checks[name] = lambda arguments=(trusted, recipe, decoding): replays(n, k, *arguments)
        checks |= {
            "skipped": lambda: is_skipped(n, k),
            "reduce-overhead": lambda: graph_trees(n, k),
            "captured optimizer": lambda: captured_optimizer(n, k, False),
            "captured optimizer, trusted": lambda: captured_optimizer(n, k, True),
        }
    for reshard in (False, True):
        name = f"gathered by FSDP2, {'freed' if reshard else 'kept'} between the passes"
        checks[name] = lambda reshard=reshard: gathered(options.device, n, k, reshard)
    with one_rank(options.device):
        good = all_hold(checks)
    if options.device == "cuda" and not options.no_times:
        records = Records(options.records, options.device)
        for size in ((4096, 4096, 1024), (8192, 8192, 2048)):
            time_microbatches(records, *size)
        for size in ((4096, 4096), (8192, 8192), (7168, 2048)):
            for tokens in (1, 64, 256, 512, 1024, 4096):
                time_forward(records, *size, tokens)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
