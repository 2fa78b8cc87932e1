"""Four Llama-3-8B blocks on a GPU: the time of a training step in BF16 and in FP8, and what it keeps in memory.

    python blocks.py                                  # eager and compiled, BF16, octile, and torchao if installed
    python blocks.py --tokens 8192 --recipes blockwise,blockwise_hybrid
    python blocks.py --device cpu --size tiny --tokens 32 --modes eager --rounds 1

A step is forward, backward and an SGD update of BF16 weights, which makes every weight new. The rounds of all variants
are interleaved. Under torch.compile the distribution's compiler may be needed: CC=gcc CXX=g++. Prints a record a recipe
(records.py), beside BF16 and torchao, the cold start (to the end of the first step, kernels included) among its
details. Exits with 1 if an octile variant's output is not BF16's within FP8's error.
"""

from __future__ import annotations

import sys

import torch
from models import SIZES, Comparison, Trained, blocks, compare, convert, forget, no_more, step_options, torchao_variants
from records import Records, protocol_of
from timing import kept_bytes


def trained_blocks(name: str, compiled: bool, x: torch.Tensor, options) -> Trained:
    """Returns a variant, with the output of its model in ``output`` and what a forward pass keeps in ``kept_bytes``."""

    def make() -> tuple:
        model = blocks(options.size, options.device)
        # A preset for names: "gate" names a projection here.
        convert(model, name, preset="all-linear", min_dims=options.min_dims, fuse=not options.no_fuse)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
        forward = torch.compile(model) if compiled else model
        return forward, optimizer, lambda: forward(x).float().square().mean(), no_more

    variant = Trained(make, options)
    variant.kept_bytes = kept_bytes(lambda: variant.model(x), options.device)
    with torch.no_grad():  # eager, so that nothing is compiled for it
        variant.output = getattr(variant.model, "_orig_mod", variant.model)(x).float()
    return variant


def details(_name: str, variant: Trained, bf16: Trained, error: float) -> dict:
    return {
        "output_error": error,
        "kept_bytes": variant.kept_bytes,
        "bf16_kept_bytes": bf16.kept_bytes,
        "cold_s": variant.cold_seconds,
        "bf16_cold_s": bf16.cold_seconds,
        "torch": torch.__version__,
    }


def main() -> int:
    parser = step_options(__doc__, "blockwise", "llama", 3, rounds=10, warm_steps=5)
    parser.add_argument("--no-fuse", action="store_true", help="PyTorch computes the activations")
    options = parser.parse_args()
    names = ["bf16", *options.recipes.split(","), *torchao_variants(options.device, "rowwise", "tensorwise")]
    x = torch.randn(1, options.tokens, SIZES[options.size].width, device=options.device, dtype=torch.bfloat16)
    records, good = Records(options.records, options.device), True
    for mode in options.modes.split(","):
        variants = {name: trained_blocks(name, mode == "compiled", x, options) for name in names}
        how = Comparison(
            what=f"Llama-3-8B blocks count=4 size={options.size} tokens={options.tokens}",
            part=mode,
            protocol=protocol_of("stream", options.rounds, note=f"a round is {options.steps} steps with an SGD update"),
            check="the output beside BF16's",
            error_of=lambda a, b: ((a.output - b.output).norm() / b.output.norm()).item(),
            most=0.1,
            details=details,
        )
        good &= compare(records, variants, options, how)
        del variants
        forget(options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
