"""Times layers on a GPU whose weights are compared by each pass, and layers whose weights are trusted.

    python weights.py
    python weights.py --device cpu --sizes 64,128,32 --decoding 64,128 --tokens 16 --rounds 1

Prints records (records.py) beside BF16: microbatches between two steps, eager and replayed, and decoding by replays.
Without a GPU nothing is replayed. tests/python/test_gpu_weights.py checks when copies are made and who waits for them.
"""

from __future__ import annotations

import sys

import torch
from records import Records, parser_of, peer_of, protocol_of
from timing import captured, interleaved, medians
from torch import nn

import octile.torch as ot

COUNT = 8  # microbatches between two changes of a weight


def layers_of(n: int, k: int, device: str) -> dict[str, nn.Module]:
    """Returns a layer whose weight is compared, one whose weight is trusted, and one of BF16."""
    kinds = {"compared": ot.Linear, "trusted": ot.Linear, "bf16": nn.Linear}
    layers = {name: kind(k, n, bias=False, device=device, dtype=torch.bfloat16) for name, kind in kinds.items()}
    ot.trust_weights(layers["trusted"])
    return layers


def time_microbatches(records: Records, n: int, k: int, tokens: int, options) -> None:
    """Records the time of microbatches between two changes of the weight, eager and replayed."""
    x = torch.randn(tokens, k, device=options.device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, n, device=options.device, dtype=torch.bfloat16)
    layers = layers_of(n, k, options.device)

    def microbatch(layer: nn.Module):
        return torch.autograd.grad(layer(x), (x, layer.weight), dy)

    def eager(layer: nn.Module):
        def step() -> None:
            layer.weight.detach().neg_()  # an optimizer's step, of every layer
            for _ in range(COUNT):
                microbatch(layer)

        return step

    def replayed(layer: nn.Module):
        graph, _ = captured(lambda: microbatch(layer), 2)

        def step() -> None:
            layer.weight.detach().neg_()
            ot.weights_changed()
            for _ in range(COUNT):
                graph.replay()

        return step

    what = f"ot.Linear tokens={tokens} n={n} k={k} recipe=blockwise microbatches={COUNT}"
    for timing, kind in (("stream", eager), ("graph", replayed))[: 2 if options.device == "cuda" else 1]:
        steps = {name: kind(layer) for name, layer in layers.items()}
        tell(records, what, timing, "microbatches", interleaved(steps, options.rounds, 5, options.device), options)


def time_forward(records: Records, n: int, k: int, tokens: int, options) -> None:
    """Records the time of a forward pass that is replayed, as in decoding."""
    x = torch.randn(tokens, k, device=options.device, dtype=torch.bfloat16)
    graphs = {}
    for name, layer in layers_of(n, k, options.device).items():
        with torch.no_grad():
            graphs[name], _ = captured(lambda layer=layer: layer(x), 2)
    us = interleaved({name: graph.replay for name, graph in graphs.items()}, options.rounds, 50)
    tell(records, f"ot.Linear tokens={tokens} n={n} k={k} recipe=blockwise", "graph", "decoding", us, options)


def tell(records: Records, what: str, timing: str, part: str, us: dict[str, list[float]], options) -> None:
    print(f"{what}, {part}, {timing}: {medians(us)}")
    peers = [peer_of("bf16", us["bf16"])]
    for name in ("compared", "trusted"):
        protocol = protocol_of(timing, options.rounds, l2="warm")
        records.add(what, "us", us[name], protocol, part=f"{part}, weights {name}", peers=peers)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", nargs="+", default=["4096,4096,1024", "8192,8192,2048"], help="n,k,tokens")
    parser.add_argument("--decoding", nargs="+", default=["4096,4096", "8192,8192", "7168,2048"], help="n,k")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 64, 256, 512, 1024, 4096], help="of decoding")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    records = Records(options.records, options.device)
    for size in options.sizes:
        time_microbatches(records, *map(int, size.split(",")), options)
    for size in options.decoding if options.device == "cuda" else ():
        for tokens in options.tokens:
            time_forward(records, *map(int, size.split(",")), tokens, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
