"""A training step of a model of transformers on a GPU: its time and its peak memory, in BF16 and in FP8.

    python models.py                                         # Llama at the width of Llama-3-8B, four layers
    python models.py --recipes blockwise,tensorwise --modes compiled
    python models.py --profile                               # and the kernels of a step of each variant
    python models.py --device cpu --size tiny --tokens 64 --modes eager --rounds 1

A step is forward, backward and fused AdamW over BF16 parameters; under "compiled" each layer is compiled, as in
torchtitan. The rounds of all variants take turns. Peaks are of a step alone, the model and its optimizer included.
Prints a record a recipe (records.py), beside BF16 and torchao's, if it is installed. Exits with 1 if a loss is not
BF16's within FP8's error.

The models of the other scripts and what compares their steps are here too.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from records import Records, parser_of, peer_of, protocol_of
from timing import allocated, interleaved, kernels_of, seconds_of, synchronize
from torch import nn
from torch.nn import functional as F

import octile.torch as ot


class Sizes(NamedTuple):
    """Sizes of a model. A model without experts has none of the sizes of experts."""

    width: int
    hidden: int  # the width inside an MLP
    heads: int
    kv_heads: int
    head: int
    inner: int = 0  # the width inside an expert
    experts: int = 0
    top_k: int = 0
    layers: int = 1
    words: int = 1024  # in the vocabulary


LLAMA_3_8B = Sizes(4096, 14336, 32, 8, 128)
#: Llamas, whose layers and vocabulary are options.
SIZES = {"llama": LLAMA_3_8B, "8b": LLAMA_3_8B, "tiny": Sizes(64, 128, 4, 2, 16)}
#: Mixtures of experts that are trained.
MIXTURES = {
    "large": Sizes(4096, 1536, 32, 8, 128, 1536, 16, 4, 4, 32000),
    "30b": Sizes(2048, 768, 32, 4, 128, 768, 128, 8, 4, 32000),  # the width and the experts of Qwen3-30B-A3B
    "tiny": Sizes(64, 32, 4, 2, 16, 32, 4, 2, 1, 128),
}
#: Mixtures that generate. Their projections are multiples of 128: others transformers does not quantise.
GENERATED = {
    "tiny": Sizes(256, 512, 4, 4, 128, 256, 4, 2, 2),
    "small": Sizes(1024, 3072, 8, 8, 128, 512, 16, 2, 4),
}


class Mlp(nn.Module):
    """The MLP of such a block."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [..., width] of x [..., width]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """A causal attention of as many heads as its layers return. Rotary embeddings are left out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.head
        self.q, self.o = (nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(sizes.width, sizes.kv_heads * sizes.head, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [batch, tokens, width]."""
        batch, tokens, _ = x.shape
        q, k, v = (layer(x).view(batch, tokens, -1, self.head).transpose(1, 2) for layer in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(h.transpose(1, 2).reshape(batch, tokens, -1))


class Block(nn.Module):
    """A block of a Llama. Under tensor parallelism its input and output are a rank's tokens."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.attention, self.mlp = Attention(sizes), Mlp(sizes.width, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x [batch, tokens, width] after the block."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def blocks(size: str, device: str, count: int = 4) -> nn.Sequential:
    """Returns blocks in BF16, always the same."""
    torch.manual_seed(0)
    with torch.device(device):
        return nn.Sequential(*(Block(SIZES[size]) for _ in range(count))).to(torch.bfloat16)


def config_of(architecture: str, sizes: Sizes, **more):
    """Returns a configuration of transformers: of a "Llama", "Qwen3Moe" or "DeepseekV3"."""
    import transformers

    fields = {
        "hidden_size": sizes.width,
        "intermediate_size": sizes.hidden,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head,
        "num_hidden_layers": sizes.layers,
        "vocab_size": sizes.words,
    }
    if sizes.experts:
        of_experts = "n_routed_experts" if architecture == "DeepseekV3" else "num_experts"
        fields |= {"moe_intermediate_size": sizes.inner, of_experts: sizes.experts, "num_experts_per_tok": sizes.top_k}
    if architecture == "DeepseekV3":
        fields |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
        fields |= {"q_lora_rank": sizes.width // 2, "kv_lora_rank": 256}
        fields |= dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), sizes.head)
    return getattr(transformers, f"{architecture}Config")(**fields, **more)


def llama(options, dtype: torch.dtype = torch.bfloat16, device: str | None = None) -> nn.Module:
    """Returns a Llama of transformers, always the same."""
    from transformers import LlamaForCausalLM

    sizes = SIZES[options.size]._replace(layers=options.layers, words=options.vocabulary)
    more = {"max_position_embeddings": options.sequence, "use_cache": False, "tie_word_embeddings": False}
    config = config_of("Llama", sizes, **more)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(device or options.device):
        return LlamaForCausalLM(config).to(dtype)


def mixture(size: str, device: str) -> nn.Module:
    """Returns a Qwen3-MoE of transformers in BF16, always the same. transformers computes its experts by
    "grouped_mm"."""
    from transformers import AutoModelForCausalLM

    config = config_of("Qwen3Moe", MIXTURES[size], bos_token_id=None, eos_token_id=None, use_cache=False)
    kinds = {"attn_implementation": "sdpa", "experts_implementation": "grouped_mm"}
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **kinds)


def experts_of(experts: int, inner: int, hidden: int, top_k: int, device: str) -> nn.Module:
    """Returns the experts of a layer of such a model, always the same."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = config_of("Qwen3Moe", Sizes(hidden, inner, 1, 1, hidden, inner, experts, top_k))
    config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    with torch.device(device):
        module = Qwen3MoeExperts(config).to(torch.bfloat16)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.02)
    return module


def torchao_variants(device: str, *recipes: str) -> list[str]:
    """Returns the names of variants of torchao; none if it is not installed or there is no GPU."""
    try:
        import torchao
    except ImportError:
        print("torchao is not installed", flush=True)
        return []
    print(f"torchao {torchao.__version__}", flush=True)
    return [f"torchao:{recipe}" for recipe in recipes] if device == "cuda" else []


def is_other(name: str) -> bool:
    """Returns whether a variant is none of Octile."""
    return name == "bf16" or name.startswith("torchao")


def convert(model: nn.Module, name: str, **options) -> None:
    """Converts a model as its variant says: "bf16", a recipe of Octile, or "torchao:<recipe>"."""
    if name.startswith("torchao:"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(name.split(":")[1]))
    elif name != "bf16":
        print(ot.convert(model, name, **options), flush=True)


class Trained:
    """A model that trains: a step is forward, backward and the optimizer."""

    def __init__(self, make: Callable[[], tuple], options) -> None:
        """make() returns the model, its optimizer, a function that returns the loss, and one that follows each step."""
        before, self.device = allocated(options.device), options.device

        def first_step() -> torch.Tensor:
            self.model, self.optimizer, self.loss, self.after_step = make()
            return self.step()

        self.cold_seconds, first = seconds_of(first_step, self.device)
        losses = [first, *(self.step() for _ in range(options.warm_steps - 1))]
        self.losses = [loss.item() for loss in losses]
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.step()
        synchronize(self.device)
        self.peak_bytes = torch.cuda.max_memory_allocated() - before if self.device == "cuda" else 0

    def step(self) -> torch.Tensor:
        """Forward, backward, and the optimizer. Returns the loss."""
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def loss_error(self, other: Trained) -> float:
        """Returns the largest relative difference of the losses."""
        return max(abs(a / b - 1) for a, b in zip(self.losses, other.losses, strict=True))


def no_more() -> None:
    """Follows the step of a model that needs nothing more."""


class Comparison(NamedTuple):
    """How variants are compared: the text before "recipe=", the protocol, and each variant's error beside BF16."""

    what: str
    part: str
    protocol: dict
    check: str
    error_of: Callable[[Trained, Trained], float]
    most: float
    details: Callable[[str, Trained, Trained, float], dict]
    version: str = ""  # of the BF16 peer
    begin: Callable[[], object] = no_more  # precedes each round
    everywhere: Callable[[bool], bool] = bool  # whether it is true on all ranks


def compare(records: Records, variants: dict[str, Trained], options, how: Comparison) -> bool:
    """Records the variants of Octile beside the others. Returns whether their errors are small."""
    steps = {name: variant.step for name, variant in variants.items()}
    us = interleaved(steps, options.rounds, options.steps, options.device, how.begin)
    times = {name: [value / 1e3 for value in values] for name, values in us.items()}
    if getattr(options, "profile", False):
        for name, step in steps.items():
            print(f"{how.part} {name}: {kernels_of(step, options.device)}", flush=True)
    peers = [
        peer_of(name.replace("torchao:", "torchao "), times[name], how.version) for name in variants if is_other(name)
    ]
    good, bf16 = True, variants["bf16"]
    for name, variant in variants.items():
        median, error = statistics.median(times[name]), how.error_of(variant, bf16)
        ratio, peak = statistics.median(times["bf16"]) / median, variant.peak_bytes / 1e9
        print(f"{how.part:9s} {name:22s} {median:8.2f} ms {ratio:6.3f} {peak:6.2f} GB, error {error:.2g}", flush=True)
        if is_other(name):
            continue
        good &= how.everywhere(error < how.most)
        details = how.details(name, variant, bf16, error)
        records.add(f"{how.what} recipe={name}", "ms", times[name], how.protocol, part=how.part, peers=peers,
                    ok=error < how.most, check=how.check, **details)  # fmt: skip
    return good


def forget(options) -> None:
    """Frees what the variants of a mode held: what is freed later would be missing in the next one's peak."""
    gc.collect()
    if options.device == "cuda":
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def step_options(
    doc: str | None, recipes: str | None, size: str, steps: int, sizes: Iterable[str] = SIZES, **defaults
) -> argparse.ArgumentParser:
    """Returns the parser of a script that times steps. recipes: None if the script has no modes. defaults: those that
    differ from these."""
    given = {"tokens": 8192, "rounds": 8, "modes": "eager,compiled", "warm_steps": 3, "min_dims": 16, "steps": steps}
    given |= {"recipes": recipes, "size": size, **defaults}
    parser = parser_of(doc)
    for name in ("tokens", "rounds", "warm_steps"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--steps", type=int, help="of a round")
    for name in ("recipes", "modes") if recipes else ():
        parser.add_argument(f"--{name}")
    parser.add_argument("--size", choices=list(sizes))
    parser.add_argument("--min-dims", type=lambda text: text if text == "auto" else int(text))
    parser.set_defaults(**given)
    return parser


def trained_llama(name: str, compiled: bool, ids: torch.Tensor, options) -> Trained:
    """Returns a variant: "bf16", "torchao:<recipe>", or a recipe, with +rowwise, +both or +primary for weights."""

    def make() -> tuple:
        model, (recipe, _, policy) = llama(options), name.partition("+")
        kept = {"weights": policy} if policy in ("rowwise", "both") else {}
        convert(model.model if name.startswith("torchao") else model, recipe, min_dims=options.min_dims, **kept)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        if policy == "primary":
            print(ot.primary_fp8(model, optimizer), flush=True)
        for layer in model.model.layers if compiled else ():
            layer.compile()
        after = (lambda: ot.update_scales(model)) if recipe == "delayed" else no_more
        return model, optimizer, lambda: model(input_ids=ids, labels=ids).loss, after

    return Trained(make, options)


def main() -> int:
    parser = step_options(__doc__, "blockwise,tensorwise", "8b", 2, modes="compiled,eager", min_dims="auto")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    options.sequence = min(options.sequence, options.tokens)
    names = ["bf16", *options.recipes.split(","), *torchao_variants(options.device, "tensorwise")]
    shape = options.tokens // options.sequence, options.sequence
    ids = torch.randint(options.vocabulary, shape, device=options.device)
    records, good = Records(options.records, options.device), True
    for mode in options.modes.split(","):
        variants = {name: trained_llama(name, mode == "compiled", ids, options) for name in names}
        peaks = {
            f"{name.replace('torchao:', 'torchao_')}_peak_gb": variant.peak_bytes / 1e9
            for name, variant in variants.items()
            if is_other(name)
        }
        how = Comparison(
            what=f"Llama size={options.size} layers={options.layers} tokens={options.tokens}",
            part=mode,
            protocol=protocol_of("stream", options.rounds, note=f"a round is {options.steps} steps with AdamW"),
            check="losses beside BF16's",
            error_of=Trained.loss_error,
            most=0.02,
            details=lambda _name, variant, _bf16, error, peaks=peaks: (
                {"loss_error": error, "peak_gb": variant.peak_bytes / 1e9, **peaks, "torch": torch.__version__}
            ),
        )
        good &= compare(records, variants, options, how)
        del variants
        forget(options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
