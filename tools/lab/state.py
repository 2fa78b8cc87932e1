"""Times a layer with delayed scaling and with a sentry on a GPU: forward and backward, beside scales of its own.

    python state.py
    python state.py --device cpu --sizes 64,128,32 --rounds 1

Prints a record a recipe and size (records.py). tests/python/test_gpu_state.py checks what layers record.
"""

from __future__ import annotations

import sys

import torch
from records import Records, parser_of, peer_of, protocol_of
from timing import interleaved, medians

import octile.torch as ot


def layers_of(n: int, k: int, device: str) -> dict[str, ot.Linear]:
    recipes = {"tensorwise": "tensorwise", "blockwise": "blockwise"}
    recipes |= {"delayed": ot.Recipe("delayed", warmup=2, history=4), "blockwise with a sentry": "blockwise"}
    layers = {
        name: ot.Linear(k, n, device=device, dtype=torch.bfloat16, recipe=recipe) for name, recipe in recipes.items()
    }
    ot.sentry(layers["blockwise with a sentry"])
    return layers


def measure(records: Records, n: int, k: int, tokens: int, options) -> None:
    x = torch.randn(tokens, k, device=options.device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, n, device=options.device, dtype=torch.bfloat16)
    layers = layers_of(n, k, options.device)

    def step(layer: ot.Linear) -> None:
        torch.autograd.grad(layer(x), (x, layer.weight), dy)

    for _ in range(2):
        step(layers["delayed"])
        ot.update_scales(layers["delayed"])
    steps = {name: lambda layer=layer: step(layer) for name, layer in layers.items()}
    us = interleaved(steps, options.rounds, options.times, options.device)
    print(f"{tokens} tokens, [{n}, {k}]: {medians(us)}")
    for name in layers:
        peers = [peer_of(other, values) for other, values in us.items() if other != name]
        protocol = protocol_of("stream", options.rounds, l2="warm")
        records.add(f"ot.Linear tokens={tokens} n={n} k={k} recipe={name}", "us", us[name], protocol, peers=peers)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", nargs="+", default=["4096,4096,8192", "8192,8192,8192"], help="n,k,tokens")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--times", type=int, default=5, help="steps of a round")
    options = parser.parse_args()
    records = Records(options.records, options.device)
    for size in options.sizes:
        measure(records, *map(int, size.split(",")), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
