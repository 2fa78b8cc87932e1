"""A mixture of experts of transformers on a GPU: a training step with its experts in BF16 and in FP8.

    python experts_model.py                                # eager and compiled, BF16 and octile
    python experts_model.py --tokens 16384 --recipes blockwise,tensorwise
    python experts_model.py --device cpu --size tiny --tokens 64 --modes eager --rounds 1 --warm-steps 1

The model is transformers' own Qwen3MoeForCausalLM with random BF16 weights: 4 layers, 16 experts of 1536 inside, 4 of
them for each token, hidden size 4096, 32 heads and 8 of keys and values, 32000 tokens in the vocabulary. --size 30b has
128 experts of 768, 8 of them for each token, and hidden size 2048. BF16 computes experts by transformers' implementation
"grouped_mm". A step is forward, backward and AdamW (fused). Compiled are the layers of the model. The rounds of all
variants are interleaved. Prints a record a recipe (records.py), with the peak memory of a step and what a forward pass
keeps among its details; --profile also prints the kernels of a step. Exits with 1 if a loss is not BF16's within 1 %.
"""

from __future__ import annotations

import sys

import torch
import transformers
from models import MIXTURES, Comparison, Trained, compare, convert, forget, mixture, no_more, step_options
from records import Records, protocol_of
from timing import kept_bytes


def trained_model(name: str, compiled: bool, ids: torch.Tensor, options) -> Trained:
    """Returns a variant, with the bytes that a forward pass keeps in ``kept_bytes``."""

    def make() -> tuple:
        model = mixture(options.size, options.device)
        convert(model, name, min_dims=options.min_dims, weights=options.weights)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        for layer in model.model.layers if compiled else ():
            layer.compile()
        return model, optimizer, lambda: model(input_ids=ids, labels=ids).loss, no_more

    variant = Trained(make, options)
    variant.kept_bytes = kept_bytes(variant.loss, options.device)
    return variant


def main() -> int:
    parser = step_options(__doc__, "blockwise", "large", 2, MIXTURES, warm_steps=4)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--profile", action="store_true", help="print the kernels of a step of each variant")
    parser.add_argument("--weights", default="none", choices=["none", "rowwise", "both"])
    options = parser.parse_args()
    context = min(options.context, options.tokens)
    torch.manual_seed(1)
    ids = torch.randint(0, MIXTURES[options.size].words, (options.tokens // context, context), device=options.device)
    records, good = Records(options.records, options.device), True
    for mode in options.modes.split(","):
        names = "bf16", *options.recipes.split(",")
        variants = {name: trained_model(name, mode == "compiled", ids, options) for name in names}
        how = Comparison(
            what=f"Qwen3-MoE model size={options.size} tokens={options.tokens}",
            part=mode,
            protocol=protocol_of("stream", options.rounds, note=f"a round is {options.steps} steps with AdamW (fused)"),
            check="the first loss beside BF16's",
            error_of=lambda a, b: abs(a.losses[0] / b.losses[0] - 1),
            most=0.01,
            details=lambda _name, variant, bf16, error: {
                "loss_error": error,
                "peak_bytes": variant.peak_bytes,
                "bf16_peak_bytes": bf16.peak_bytes,
                "kept_bytes": variant.kept_bytes,
                "bf16_kept_bytes": bf16.kept_bytes,
                "weights": options.weights,
                "torch": torch.__version__,
            },
            version=transformers.__version__,
        )
        good &= compare(records, variants, options, how)
        del variants
        forget(options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
