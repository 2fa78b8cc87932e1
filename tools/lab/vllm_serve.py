"""Tokens of a model in vLLM: Octile's plug-in beside vLLM's own block-FP8 kernel and BF16.

    python vllm_serve.py                                # Qwen3-8B's sizes, 1, 8, 64 and 256 sequences
    python vllm_serve.py --layers 4 --batches 1,8 --arms octile,bf16

Needs vLLM. Weights are random, made from the names of parameters and rounded to FP8 in blocks of 128 x 128; "bf16" has
the rounded values. Each arm is a process of its own: "octile", "vllm" (its own choice, with OCTILE_VLLM=0) and "bf16".
It prints the seconds from its start to its first token, then for each batch of prompts of 128 tokens a record of the
time of a decoded token, beside the arms before it. At last come the logits' distances from BF16's: a random model makes
small differences large. Variables such as VLLM_CACHE_ROOT and OCTILE_CACHE_ROOTS reach the arms, so that a second run
finds what the first has compiled. Exits with 1 if an arm fails, or if Octile's logits are further from BF16's than 1.5
times vLLM's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from records import Records, parser_of, peer_of, protocol_of

ARMS = ("octile", "vllm", "bf16")
PROMPT, NEW, ROUNDS, BLOCK = 128, 128, 3, 128
BEGUN = time.time()


def write_config(folder: Path, layers: int, fp8: bool) -> None:
    """Writes the config.json of Qwen3-8B with another number of layers."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "max_position_embeddings": 40960,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if fp8:
        blocks = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
        config["quantization_config"] = blocks
    (folder / "config.json").write_text(json.dumps(config))


def fill(model) -> None:
    """Gives the parameters of a vLLM model their values."""
    import torch

    for name, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            full = f"{name}.{leaf}"
            if leaf.startswith("weight_scale"):
                continue  # written with its weight
            if "norm" in full:
                parameter.fill_(1)
                continue
            made = torch.Generator(parameter.device).manual_seed(zlib.crc32(full.encode()))
            w = 0.02 * torch.randn(parameter.shape, generator=made, device=parameter.device, dtype=torch.bfloat16)
            if "proj" not in full:
                parameter.copy_(w)
                continue
            n, k = w.shape
            blocks = w.float().view(n // BLOCK, BLOCK, k // BLOCK, BLOCK)
            scale = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
            codes = (blocks / scale).to(torch.float8_e4m3fn)
            if parameter.dtype == codes.dtype:
                parameter.copy_(codes.view(n, k))
                of_blocks = getattr(module, "weight_scale_inv", None)
                (module.weight_scale if of_blocks is None else of_blocks).copy_(scale.view(n // BLOCK, k // BLOCK))
            else:
                parameter.copy_((codes.float() * scale).view(n, k))


def serve(options) -> None:
    """Is an arm: prints a line of JSON, and writes the logits of a token behind 16 prompts to --logits."""
    import torch
    from timing import seconds_of
    from vllm import LLM, SamplingParams
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader("seeded")
    class Seeded(BaseModelLoader):
        def download_model(self, model_config) -> None:
            """Has nothing to download."""

        @torch.no_grad()
        def load_weights(self, model, model_config) -> None:
            fill(model)

    batches = [int(text) for text in options.batches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), options.layers, options.arm != "bf16")
        llm = LLM(folder, skip_tokenizer_init=True, load_format="seeded", max_model_len=2048, max_num_seqs=max(batches),
                  gpu_memory_utilization=0.7, enable_prefix_caching=False, seed=0,
                  compilation_config={"cudagraph_capture_sizes": batches})  # fmt: skip

    def generate(batch: int, length: int, new: int, seed: int) -> float:
        made = torch.Generator().manual_seed(seed)
        prompts = [{"prompt_token_ids": torch.randint(150000, (length,), generator=made).tolist()} for _ in range(batch)]
        greedy = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        return seconds_of(lambda: llm.generate(prompts, greedy, use_tqdm=False))[0]

    generate(1, PROMPT, 1, 1)
    first = time.time() - BEGUN
    model = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model
    compute, kept = model.compute_logits, []

    def kept_logits(*arguments, **words):
        kept.append(compute(*arguments, **words))
        return kept[-1]

    model.compute_logits = kept_logits
    generate(min(16, max(batches)), 96, 1, 7)
    model.compute_logits = compute
    torch.save(torch.cat(kept).float().cpu(), options.logits)
    kernels = {type(m.quant_method.fp8_linear).__name__ for m in model.modules()
               if hasattr(getattr(m, "quant_method", None), "fp8_linear")}  # fmt: skip
    taken = {}
    for batch in batches:
        generate(batch, PROMPT, 16, 3)
        whole = [generate(batch, PROMPT, NEW, 11 + i) for i in range(ROUNDS)]
        prefill = [generate(batch, PROMPT, 1, 21 + i) for i in range(ROUNDS)]
        us = [(w - p) * 1e6 / (NEW - 1) for w, p in zip(sorted(whole), sorted(prefill), strict=True)]
        taken[batch] = {"us": us, "prefill_ms": statistics.median(prefill) * 1e3,
                        "tokens_per_s": batch * NEW / statistics.median(whole)}  # fmt: skip
    print(json.dumps({"first_token_s": first, "kernels": sorted(kernels), "batches": taken}), flush=True)


def arm_of(arm: str, options, logits: Path) -> dict:
    """Runs an arm and returns what it printed. Raises RuntimeError with the end of its output if it fails."""
    words = [sys.executable, __file__, "--arm", arm, "--logits", str(logits), "--layers", str(options.layers)]
    # One process, whose model this script can ask; and no folder of a hub.
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if arm != "octile":
        variables["OCTILE_VLLM"] = "0"
    run = subprocess.run([*words, "--batches", options.batches], env=os.environ | variables, capture_output=True,
                         text=True)  # fmt: skip
    if run.returncode != 0:
        raise RuntimeError(f"vllm_serve.py: {arm} ended with {run.returncode}: {run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def distances(arms, folder: Path) -> dict[str, float]:
    """Returns how far the logits of the FP8 arms are from those of BF16, relative to them."""
    import torch

    logits = {arm: torch.load(folder / arm).double() for arm in arms}
    centred = {arm: t - t.mean(1, keepdim=True) for arm, t in logits.items()}
    if "bf16" not in centred:
        return {}
    bf16 = centred.pop("bf16")
    return {arm: ((t - bf16).norm() / bf16.norm()).item() for arm, t in centred.items()}


def main() -> int:
    parser = parser_of(__doc__, ("cuda",))
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--batches", default="1,8,64,256")
    parser.add_argument("--arms", default=",".join(ARMS))
    for inner in ("--arm", "--logits"):
        parser.add_argument(inner, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        import vllm
    except ImportError as error:
        print(f"vllm_serve.py: vLLM cannot be imported: {error}", file=sys.stderr)
        return 1
    if options.arm:
        serve(options)
        return 0
    arms = options.arms.split(",")
    if wrong := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"--arms has {wrong[0]!r}; allowed are {', '.join(ARMS)}")
    records, done = Records(options.records, "cuda"), {}
    with tempfile.TemporaryDirectory() as name:
        for arm in arms:
            done[arm] = arm_of(arm, options, Path(name) / arm)
            text = f"{arm}: first token {done[arm]['first_token_s']:.1f} s after the start, {done[arm]['kernels']}"
            print(text, flush=True)
            for batch, made in done[arm]["batches"].items():
                peers = [peer_of(other, d["batches"][batch]["us"]) for other, d in done.items() if other != arm]
                records.add(f"Qwen3-8B in vLLM layers={options.layers} batch={batch}", "us", made["us"],
                            protocol_of("host", ROUNDS, interleaved=False, note=f"vLLM {vllm.__version__}"),
                            part=f"decode {arm}", peers=peers, prefill_ms=made["prefill_ms"],
                            tokens_per_s=made["tokens_per_s"])  # fmt: skip
        far = distances(arms, Path(name))
    for arm, distance in far.items():
        print(f"{arm}: logits {distance:.4f} from BF16's", flush=True)
    return 1 if far.get("octile", 0) > 1.5 * far.get("vllm", far.get("octile", 0)) else 0


if __name__ == "__main__":
    sys.exit(main())
