"""A mixture of experts of transformers on a GPU: a training step with its experts in BF16 and in FP8.

    python experts_model.py                                # eager and compiled, BF16 and octile
    python experts_model.py --tokens 16384 --recipes blockwise,tensorwise
    python experts_model.py --device cpu --size tiny --tokens 64 --modes eager --rounds 1 --warm-steps 1

The model is transformers' own Qwen3MoeForCausalLM with random BF16 weights: 4 layers, 16 experts of 1536 inside, 4 of
them for each token, hidden size 4096, 32 heads and 8 of keys and values, 32000 tokens in the vocabulary. BF16 computes
experts by transformers' implementation "grouped_mm". A step is forward, backward and AdamW (fused). Compiled are the
layers of the model. The rounds of all variants are interleaved. Prints a record a recipe (records.py), with the peak
memory of a step and what a forward pass keeps among its details. Exits with 1 if a loss is not BF16's within 1 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import NamedTuple

import torch
import transformers
from records import Records, add_option, peer_of, protocol_of
from timing import synchronize, wall_us

import octile.torch as ot


class Sizes(NamedTuple):
    """Of a model."""

    hidden: int
    inner: int
    experts: int
    top_k: int
    heads: int
    kv_heads: int
    head: int
    words: int
    layers: int


SIZES = {"large": Sizes(4096, 1536, 16, 4, 32, 8, 128, 32000, 4), "tiny": Sizes(64, 32, 4, 2, 4, 2, 16, 128, 1)}


def model_of(variant: str, options) -> transformers.PreTrainedModel:
    """Returns the model, always of the same weights, converted as the variant says: bf16, or a recipe."""
    sizes = SIZES[options.size]
    config = transformers.Qwen3MoeConfig(
        vocab_size=sizes.words,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        moe_intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head,
        num_experts=sizes.experts,
        num_experts_per_tok=sizes.top_k,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        experts_implementation="grouped_mm",
    )
    torch.manual_seed(0)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation="grouped_mm"
        )
    if variant != "bf16":
        report = ot.convert(model, variant, min_dims=options.min_dims, weights=options.weights)
        told = {"converted": len(report.converted), "of_them_experts": len(report.experts)}
        print(json.dumps({"variant": variant, **told}), flush=True)
    return model


class Variant:
    """A model with its step."""

    def __init__(self, name: str, compiled: bool, ids: torch.Tensor, options) -> None:
        self.name, self.ids, self.device = name + (" compiled" if compiled else " eager"), ids, options.device
        self.model = model_of(name, options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        if compiled:
            for layer in self.model.model.layers:
                layer.compile()
        self.first_loss = self.step().item()
        for _ in range(options.warm_steps):
            self.step()
        self.peak_bytes, self.kept_bytes = self.memory() if self.device == "cuda" else (0, 0)

    def loss(self) -> torch.Tensor:
        return self.model(input_ids=self.ids, labels=self.ids).loss

    def step(self) -> torch.Tensor:
        """Forward, backward, and the optimizer. Returns the loss."""
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def memory(self) -> tuple[int, int]:
        """Returns how far a step's memory is above what other variants and nothing else hold, at its peak, and what a
        forward pass keeps."""
        torch.cuda.synchronize()
        mine = sum(p.nbytes for p in self.model.parameters())
        mine += sum(s.nbytes for state in self.optimizer.state.values() for s in state.values() if torch.is_tensor(s))
        before = torch.cuda.memory_allocated()
        loss = self.loss()
        kept = torch.cuda.memory_allocated() - before
        del loss
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.step()
        torch.cuda.synchronize()
        return mine + torch.cuda.max_memory_allocated() - before, kept

    def milliseconds(self, steps: int) -> float:
        """Returns the time of a step."""
        return wall_us(self.step, steps, self.device) / 1e3


def compare(records: Records, names: list[str], mode: str, ids: torch.Tensor, options) -> bool:
    """Records the variants of octile beside BF16. Returns whether their first losses are BF16's."""
    variants = [Variant(name, mode == "compiled", ids, options) for name in names]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name, variant in zip(names, variants, strict=True):
            times[name].append(variant.milliseconds(options.steps))
    bf16, good = variants[0], True
    for name, variant in zip(names[1:], variants[1:], strict=True):
        error = abs(variant.first_loss / bf16.first_loss - 1)
        good &= error < 0.01
        records.add(
            f"Qwen3-MoE model size={options.size} tokens={options.tokens} recipe={name}",
            "ms",
            times[name],
            protocol_of("stream", options.rounds, note=f"a round is {options.steps} steps with AdamW (fused)"),
            part=mode,
            peers=[peer_of("bf16", times["bf16"], transformers.__version__)],
            ok=error < 0.01,
            check="the first loss beside BF16's",
            loss_error=error,
            peak_bytes=variant.peak_bytes,
            bf16_peak_bytes=bf16.peak_bytes,
            kept_bytes=variant.kept_bytes,
            bf16_kept_bytes=bf16.kept_bytes,
            weights=options.weights,
            torch=torch.__version__,
        )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--recipes", default="blockwise")
    parser.add_argument("--weights", default="none", choices=["none", "rowwise", "both"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="of a round")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--warm-steps", type=int, default=3)
    parser.add_argument("--size", default="large", choices=list(SIZES))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--min-dims", default=16, type=lambda text: text if text == "auto" else int(text))
    add_option(parser)
    options = parser.parse_args()
    context = min(options.context, options.tokens)
    torch.manual_seed(1)
    ids = torch.randint(0, SIZES[options.size].words, (options.tokens // context, context), device=options.device)
    records, good = Records(options.records, options.device), True
    for mode in options.modes.split(","):
        good &= compare(records, ["bf16", *options.recipes.split(",")], mode, ids, options)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    synchronize(options.device)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
