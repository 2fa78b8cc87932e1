"""A decode step of a Llama of transformers without a CUDA graph: its time in BF16 and in FP8.

    python decode.py                                    # eight layers of Llama-3-8B's width, batches 1, 8, 64 and 256
    python decode.py --device cpu --size tiny --batches 1 --rounds 1

A step is one token a sequence behind a prefix of 16, in `inference_mode`. The host enqueues each layer, and at small
batches takes longer than the GPU. Variants: "converted", whose weights are compared in each call; "trusted", which
`trust_weights` promises to leave alone; "frozen", whose weights are codes. The rounds of all variants take turns.
Prints a record a variant and batch, beside BF16. Exits with 1 if logits are further from those in float32 than FP8's
shorter significand explains: a random model makes small differences large, BF16's too.
"""

from __future__ import annotations

import statistics
import sys

import torch
from models import llama, step_options
from records import Records, peer_of, protocol_of
from timing import interleaved
from torch import nn

import octile.torch as ot

PREFIX = 16
MOST = 32  # times BF16's error: of 7 bits behind the point FP8 has 3, and its blocks' scales are powers of two


def variant(name: str, options) -> nn.Module:
    """Returns a model that decodes."""
    model = llama(options).eval().requires_grad_(name == "converted")
    if name != "bf16":
        print(ot.convert(model, options.recipe, min_dims=options.min_dims), flush=True)
    if name == "trusted":
        ot.trust_weights(model)
    if name == "frozen":
        ot.freeze_to_fp8(model)
    return model


class Decoder:
    """A model behind a prefix. Each step is the same: the cache forgets its token."""

    def __init__(self, model: nn.Module, ids: torch.Tensor) -> None:
        self.model, self.token = model, ids[:, PREFIX:]
        with torch.inference_mode():
            self.cache = model(input_ids=ids[:, :PREFIX], use_cache=True).past_key_values

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        """Returns the logits of the next token."""
        logits = self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True).logits
        self.cache.crop(-1)
        return logits


def main() -> int:
    parser = step_options(__doc__, None, "8b", 10, rounds=10)
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--recipe", default="blockwise")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=4096)
    options = parser.parse_args()
    options.sequence = 4096
    names = ("bf16", "converted", "trusted", "frozen")
    models = {name: variant(name, options) for name in names}
    exact = llama(options, torch.float32).eval()
    records, good = Records(options.records, options.device), True
    for batch in (int(text) for text in options.batches.split(",")):
        ids = torch.randint(options.vocabulary, (batch, PREFIX + 1), device=options.device)
        decoders = {name: Decoder(model, ids) for name, model in models.items()}
        wanted = Decoder(exact, ids).step()
        errors = {}
        for name, decoder in decoders.items():
            logits = [decoder.step() for _ in range(3)][-1].float()
            errors[name] = ((logits - wanted).norm() / wanted.norm()).item()
            good &= errors[name] <= MOST * errors["bf16"]
        us = interleaved({name: d.step for name, d in decoders.items()}, options.rounds, options.steps, options.device)
        bf16 = statistics.median(us["bf16"])
        for name in names:
            median = statistics.median(us[name])
            line = f"batch {batch:4d} {name:10s} {median / 1e3:7.2f} ms {bf16 / median:6.3f}, error {errors[name]:.3f}"
            print(line, flush=True)
            if name == "bf16":
                continue
            records.add(f"decode size={options.size} layers={options.layers} batch={batch} recipe={options.recipe}",
                        "us", us[name], protocol_of("stream", options.rounds, note=f"a round is {options.steps} steps"),
                        part=name, peers=[peer_of("bf16", us["bf16"])],
                        ok=errors[name] <= MOST * errors["bf16"], check="logits beside float32's",
                        error=errors[name], bf16_error=errors["bf16"])  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
