"""A training step of a model of transformers on a GPU: its time and its peak memory, in BF16 and in FP8.

    python models.py                                         # Llama at the width of Llama-3-8B, four layers
    python models.py --recipes blockwise,tensorwise --modes compiled
    python models.py --profile                               # and the kernels of a step of each variant
    python models.py --device cpu --size tiny --tokens 64 --modes eager --rounds 1

A step is forward, backward and fused AdamW over BF16 parameters; under "compiled" each layer is compiled, as in
torchtitan. The rounds of all variants take turns. Peaks are of a step alone, the model and its optimizer included.
Prints a record a recipe (records.py), beside BF16 and torchao's, if it is installed. Exits with 1 if a loss is not
BF16's within FP8's error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

import torch
from records import Records, add_option, peer_of, protocol_of
from timing import synchronize, wall_us
from transformers import LlamaConfig, LlamaForCausalLM

import octile.torch as ot

SIZES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2},
}


def llama(options, dtype: torch.dtype = torch.bfloat16) -> LlamaForCausalLM:
    """Returns the model, always the same."""
    config = LlamaConfig(
        **SIZES[options.size],
        num_hidden_layers=options.layers,
        vocab_size=options.vocabulary,
        max_position_embeddings=options.sequence,
        use_cache=False,
        tie_word_embeddings=False,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(options.device):
        return LlamaForCausalLM(config).to(dtype)


class Variant:
    """A model with its optimizer."""

    def __init__(self, name: str, compiled: bool, ids: torch.Tensor, options) -> None:
        self.name, self.ids, self.device, before = name, ids, options.device, allocated(options.device)
        self.model = llama(options)
        if name.startswith("torchao:"):
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training

            config = Float8LinearConfig.from_recipe_name(name.split(":")[1])
            convert_to_float8_training(self.model.model, config=config)
        elif name != "bf16":
            recipe, _, policy = name.partition("+")
            kept = policy if policy in ("rowwise", "both") else "none"
            print(ot.convert(self.model, recipe, min_dims=options.min_dims, weights=kept), flush=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        if name.endswith("+primary"):
            print(ot.primary_fp8(self.model, self.optimizer), flush=True)
        if compiled:
            for layer in self.model.model.layers:
                layer.compile()
        self.losses = [self.step() for _ in range(options.warm_steps)]
        synchronize(self.device)
        self.losses = [loss.item() for loss in self.losses]
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.step()
        self.peak_gb = (peak(self.device) - before) / 1e9

    def step(self) -> torch.Tensor:
        """Forward, backward, and the optimizer. Returns the loss."""
        loss = self.model(input_ids=self.ids, labels=self.ids).loss
        loss.backward()
        self.optimizer.step()
        if self.name.startswith("delayed"):
            ot.update_scales(self.model)
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def profile(self) -> str:
        """Returns the kernels of a step, those that take most first."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as told:
            self.step()
            synchronize(self.device)
        kernels = [event for event in told.key_averages() if event.device_type.name == "CUDA"]
        kernels.sort(key=lambda event: -event.self_device_time_total)
        total = sum(event.self_device_time_total for event in kernels)
        lines = [f"{self.name}: {total / 1e3:.2f} ms of kernels"]
        for event in kernels[:40]:
            lines.append(f"{event.self_device_time_total / 1e3:8.3f} ms {event.count:5d} x {event.key[:150]}")
        return "\n".join(lines)


def allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def compare(records: Records, names: list[str], mode: str, ids: torch.Tensor, options) -> bool:
    """Records the variants of octile beside the others. Returns whether their losses are BF16's."""
    variants = {name: Variant(name, mode == "compiled", ids, options) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name, variant in variants.items():
            times[name].append(wall_us(variant.step, 2, options.device) / 1e3)
    if options.profile:
        print("\n".join(f"{mode} {variant.profile()}" for variant in variants.values()), flush=True)
    others = [name for name in names if name == "bf16" or name.startswith("torchao:")]
    peers = [peer_of(name.replace("torchao:", "torchao "), times[name]) for name in others]
    good = True
    for name in [name for name in names if name not in others]:
        variant, reference = variants[name], variants["bf16"]
        error = max(abs(a - b) / b for a, b in zip(variant.losses, reference.losses, strict=True))
        good &= error < 0.02
        records.add(
            f"Llama size={options.size} layers={options.layers} tokens={options.tokens} recipe={name}",
            "ms",
            times[name],
            protocol_of("stream", options.rounds, note="a round is 2 steps with AdamW"),
            part=mode,
            peers=peers,
            ok=error < 0.02,
            check="losses beside BF16's",
            loss_error=error,
            peak_gb=variant.peak_gb,
            **{f"{other.replace('torchao:', 'torchao_')}_peak_gb": variants[other].peak_gb for other in others},
            torch=torch.__version__,
        )
    for name, variant in variants.items():
        median = statistics.median(times[name])
        ratio = statistics.median(times["bf16"]) / median
        print(f"{mode:9s} {name:22s} {median:8.2f} ms {ratio:6.3f} {variant.peak_gb:6.2f} GB", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--recipes", default="blockwise,tensorwise", help="with +rowwise, +both or +primary: weights")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--modes", default="compiled,eager")
    parser.add_argument("--warm-steps", type=int, default=3)
    parser.add_argument("--size", default="8b", choices=list(SIZES))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--min-dims", default="auto", type=lambda text: text if text == "auto" else int(text))
    parser.add_argument("--profile", action="store_true")
    add_option(parser)
    options = parser.parse_args()
    options.sequence = min(options.sequence, options.tokens)
    names = ["bf16", *options.recipes.split(",")]
    try:
        import torchao

        names += ["torchao:tensorwise"] if options.device == "cuda" else []
        print(json.dumps({"torchao": torchao.__version__}), flush=True)
    except ImportError:
        print(json.dumps({"torchao": "not installed"}), flush=True)
    shape = options.tokens // options.sequence, options.sequence
    ids = torch.randint(options.vocabulary, shape, device=options.device)
    records, good = Records(options.records, options.device), True
    for mode in options.modes.split(","):
        good &= compare(records, names, mode, ids, options)
        if options.device == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
