"""MLPs whose activation a quantiser computes, on a GPU: checked against the host and the plain path, then timed.

    python mlps.py
    python mlps.py --device cpu --size 64,128 --no-times     # the checks that need no GPU

Prints a line a check, and exits with 1 if one fails. Times: forward and backward of an MLP of Llama-3-8B's sizes, fused
and with PyTorch's activation between its layers, eager and compiled, and the bytes that each keeps for backward.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys

import torch
from checks import all_hold, equal
from records import Records, add_option, peer_of, protocol_of
from timing import interleaved
from torch import nn

import octile.torch as ot
from octile.torch.gated import ACTIVATIONS

ops = torch.ops.octile
RECIPES = ("blockwise", "blockwise:f32", "blockwise_hybrid", "tensorwise", "rowwise", "mxfp8")


class Mlp(nn.Module):
    """down(act(gate(x)) * up(x)); with ``joined`` one layer computes gate and up, and ``plain`` has no up."""

    def __init__(self, k: int, i: int, activation: str, shape: str = "gated", bias: bool = True) -> None:
        super().__init__()
        self.activation, self.shape = ACTIVATIONS[activation], shape
        self.gate = nn.Linear(k, 2 * i if shape == "joined" else i, bias=bias)
        self.up = nn.Linear(k, i, bias=bias) if shape == "gated" else None
        self.down = nn.Linear(i, k, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [..., k] of x [..., k]."""
        if self.shape == "plain":
            return self.down(self.activation(self.gate(x)))
        if self.shape == "joined":
            gate, up = self.gate(x).chunk(2, dim=-1)
            return self.down(self.activation(gate) * up)
        return self.down(self.activation(self.gate(x)) * self.up(x))


def pair_of(device: str, recipe: str, *arguments, **options) -> tuple[Mlp, Mlp]:
    """Returns an MLP that is fused, and the same that is not."""
    with torch.device(device):
        model = nn.ModuleDict({"mlp": Mlp(*arguments, **options)}).to(torch.bfloat16)
    plain = copy.deepcopy(model)
    for one, fuse in ((model, True), (plain, False)):
        report = ot.convert(one, recipe, preset="all-linear", min_dims=16, fuse=fuse)
        assert bool(report.fused) == fuse, report
    return model["mlp"], plain["mlp"]


def data_of(device: str, k: int, tokens: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    x, dy = torch.randn(tokens, k), torch.randn(tokens, k)
    return x.to(device, torch.bfloat16), dy.to(device, torch.bfloat16)


def passes(module, parameters: list[nn.Parameter], x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    """Returns y, dx and the gradients of the parameters."""
    x = x.detach().requires_grad_()
    y = module(x)
    return [y.detach(), *torch.autograd.grad(y, (x, *parameters), dy)]


def are_close(a: list[torch.Tensor], b: list[torch.Tensor], most: float) -> bool:
    return all(
        (p.cpu().double() - q.cpu().double()).norm() <= most * q.double().norm() for p, q in zip(a, b, strict=True)
    )


def is_right(device: str, k: int, i: int, recipe: str) -> bool:
    """Every activation and shape: close to the host's results, and to those of layers of their own."""
    good = True
    for activation in ACTIVATIONS:
        for shape in ("gated", "joined", "plain"):
            fused, plain = pair_of(device, recipe, k, i, activation, shape)
            x, dy = data_of(device, k)
            made = passes(fused, list(fused.parameters()), x, dy)
            host = copy.deepcopy(fused).cpu()
            good &= are_close(made, passes(host, list(host.parameters()), x.cpu(), dy.cpu()), 0.02)
            good &= are_close(made, passes(plain, list(plain.parameters()), x, dy), 0.05)
    return good


def quantisers_equal_the_hosts(device: str, i: int) -> bool:
    """Codes and scales of the product have the host's bits, also of columns of a wider matrix."""
    good = True
    wide = torch.randn(300, 2 * i).to(device, torch.bfloat16)
    for recipe in RECIPES:
        code = ot.Recipe(recipe.removesuffix(":f32"), "f32" if recipe.endswith(":f32") else "pow2").code
        for activation in ACTIVATIONS:
            for up in (None, wide[:, i:]):
                made = ops.quantize_activation(wide[:, :i], up, activation, code, True, True)
                other = None if up is None else up.cpu()
                wanted = ops.quantize_activation(wide[:, :i].cpu(), other, activation, code, True, True)
                good &= all(
                    a.cpu().view(torch.uint8).equal(b.view(torch.uint8)) for a, b in zip(made, wanted, strict=True)
                )
    return good


def compiled_equals_eager(device: str, k: int, i: int) -> bool:
    good = True
    for recipe in RECIPES:
        torch._dynamo.reset()
        fused, _ = pair_of(device, recipe, k, i, "silu")
        x, dy = data_of(device, k)
        parameters = list(fused.parameters())
        compiled = torch.compile(fused, fullgraph=True)
        good &= equal(passes(fused, parameters, x, dy), passes(compiled, parameters, x, dy))
    return good


def main_grad_adds(device: str, k: int, i: int) -> bool:
    """The gradients that autograd returns are those that are added."""
    fused, _ = pair_of(device, "blockwise", k, i, "silu", bias=False)
    x, dy = data_of(device, k)
    parameters = list(fused.parameters())
    wanted = passes(fused, parameters, x, dy)[2:]
    for parameter in parameters:
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    for _ in range(2):
        fused(x.detach().requires_grad_()).backward(dy)
    return are_close([p.main_grad / 2 for p in parameters], wanted, 0.005)


def replays(k: int, i: int) -> bool:
    """A captured step sees new inputs and weights."""
    fused, _ = pair_of("cuda", "blockwise", k, i, "silu")
    twin = copy.deepcopy(fused)
    x, dy = data_of("cuda", k)
    parameters, theirs = list(fused.parameters()), list(twin.parameters())
    passes(fused, parameters, x, dy)
    graph, good = torch.cuda.CUDAGraph(), True
    with torch.cuda.graph(graph):
        made = passes(fused, parameters, x, dy)
    for _ in range(3):
        x.copy_(data_of("cuda", k)[0])
        for p in (*parameters, *theirs):
            p.data.neg_()
        graph.replay()
        good &= equal(made, passes(twin, theirs, x, dy))
    return good


def kept_bytes(module, x: torch.Tensor) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = module(x)
    taken = torch.cuda.memory_allocated() - before - y.nbytes
    del y
    return taken


def time_mlps(records: Records, recipe: str, tokens: int, k: int, i: int) -> None:
    fused, plain = pair_of("cuda", recipe, k, i, "silu", bias=False)
    x, dy = data_of("cuda", k, tokens)
    x.requires_grad_()
    torch._dynamo.reset()
    runs = {"fused eager": fused, "plain eager": plain}
    runs |= {"fused compiled": torch.compile(fused), "plain compiled": torch.compile(plain)}
    for run in runs.values():
        run(x).backward(dy)
    steps = {name: lambda run=run: run(x).backward(dy) for name, run in runs.items()}
    us = interleaved(steps, 20, 3)
    bytes_of = {name: kept_bytes(run, x) for name, run in runs.items()}
    told = ", ".join(
        f"{name} {statistics.median(v):.0f} us, {bytes_of[name] / 2**20:.0f} MiB" for name, v in us.items()
    )
    print(f"{recipe}, {tokens} tokens, [{i}, {k}]: {told}", flush=True)
    for name, values in us.items():
        peers = [peer_of(other, theirs) for other, theirs in us.items() if other != name]
        what = f"ot.gated_mlp tokens={tokens} k={k} i={i} recipe={recipe} {name}"
        protocol = protocol_of("stream", 20, l2="warm")
        records.add(what, "us", values, protocol, peers=peers, kept_bytes=bytes_of[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="512,1408", help="k,i of the checks; i is a multiple of 128")
    parser.add_argument("--tokens", type=int, default=8192, help="of the times")
    parser.add_argument("--recipes", default="blockwise,tensorwise", help="of the times")
    parser.add_argument("--no-times", action="store_true")
    add_option(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    k, i = map(int, options.size.split(","))
    device = options.device
    checks = {recipe: lambda recipe=recipe: is_right(device, k, i, recipe) for recipe in RECIPES}
    checks |= {
        "quantisers equal the host's": lambda: quantisers_equal_the_hosts(device, i),
        "main_grad": lambda: main_grad_adds(device, k, i),
    }
    if device == "cuda":
        checks |= {
            "compiled equals eager": lambda: compiled_equals_eager(device, k, i),
            "replays": lambda: replays(k, i),
        }
    good = all_hold(checks)
    if device == "cuda" and not options.no_times:
        records = Records(options.records, device)
        for recipe in options.recipes.split(","):
            time_mlps(records, recipe, options.tokens, 4096, 14336)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
