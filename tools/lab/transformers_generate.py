"""Block-FP8 models of Hugging Face transformers, generated from by Octile: right, compiled once, and how fast.

    python transformers_generate.py                     # one GPU
    python transformers_generate.py --devices 2         # two GPUs of one process
    python transformers_generate.py --device cpu --size tiny --new-tokens 4 --batch 2

Small models with random weights, of DeepSeek-V3's and Qwen3-MoE's architecture, are quantised and saved by
transformers, loaded again, and generated from in a process with an empty kernel cache. Checked are: logits beside the
model with dequantised weights in bfloat16, whose error is that of rounding activations to FP8; all layers in FP8; every
kernel compiled once, and none by a second process.
Prints a row a model, and exits with 1 if a check fails. Needs transformers and accelerate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from models import GENERATED, config_of
from records import Records, parser_of, peer_of, protocol_of
from timing import seconds_of

ARCHITECTURES = {"qwen3": "Qwen3Moe", "deepseek": "DeepseekV3"}


def save(architecture: str, size: str, folder: Path, device: str) -> None:
    """Writes a checkpoint that transformers has quantised."""
    import torch
    import transformers

    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = config_of(ARCHITECTURES[architecture], GENERATED[size], **tokens)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / "bf16")
    config = transformers.FineGrainedFP8Config(modules_to_not_convert=["lm_head", "gate"])
    fp8 = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "bf16",
        quantization_config=config,
        dtype=torch.bfloat16,
        device_map={"": "cpu" if device == "cpu" else 0},
    )
    fp8.save_pretrained(folder / "fp8")


def device_map(architecture: str, size: str, options) -> dict[str, str | int]:
    """Returns where the parts of the model go: the first half of the layers and the ends to the first GPU."""
    if options.device == "cpu" or options.devices == 1:
        return {"": options.device if options.device == "cpu" else 0}
    layers = GENERATED[size].layers
    ends = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": options.devices - 1, "lm_head": 0}
    return ends | {f"model.layers.{i}": i * options.devices // layers for i in range(layers)}


def dequantised(model):
    """Returns the model with BF16 weights, codes times the scale of their block, on the first device, and the names of
    its modules that have them."""
    import torch
    import transformers

    first = model.get_input_embeddings().weight.device
    state = {name: tensor.to(first) for name, tensor in model.state_dict().items()}
    names = [n for n, t in state.items() if t.dtype == torch.float8_e4m3fn]
    for name in names:
        scales = state.pop(name + "_scale_inv").repeat_interleave(128, -2).repeat_interleave(128, -1)
        rows, cols = state[name].shape[-2:]
        state[name] = (state[name].float() * scales[..., :rows, :cols]).bfloat16()
    plain = transformers.AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    plain.load_state_dict(state, strict=True)
    return plain.to(first).eval(), sorted({name.rpartition(".")[0] for name in names})


def round_activations(_module, inputs):
    """A hook that rounds a module's input to E4M3 in blocks of 1x128, with fp32 scales."""
    import torch

    x, *others = inputs
    blocks = x.float().unflatten(-1, (-1, 128))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    rounded = (blocks / scale).to(torch.float8_e4m3fn).float() * scale
    return rounded.flatten(-2).to(x.dtype), *others


def tokens_per_second(model, prompt, new_tokens: int, device: str) -> tuple[float, float]:
    """Returns the rate of a second generation, and the seconds of the first, kernels included."""

    def generate():
        return model.generate(prompt, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False)

    (first, _), (second, out) = (seconds_of(generate, device) for _ in range(2))
    if out.shape != (prompt.shape[0], prompt.shape[1] + new_tokens):
        raise AssertionError(f"generate returned {tuple(out.shape)}")
    return prompt.shape[0] * new_tokens / second, first


def run(architecture: str, folder: Path, options) -> dict:
    """Returns the measurements of one model."""
    import torch
    import transformers

    import octile.torch as ot

    ot.use_in_transformers(host=options.device == "cpu")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not (folder / "fp8").exists():
        save(architecture, options.size, folder, options.device)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "fp8", dtype=torch.bfloat16, device_map=device_map(architecture, options.size, options),
        experts_implementation="grouped_mm",
    ).eval()  # fmt: skip
    first = model.get_input_embeddings().weight.device
    devices = {str(p.device) for p in model.parameters()}
    fp8 = sum(p.numel() for p in model.parameters() if p.dtype == torch.float8_e4m3fn)
    prompt = torch.randint(3, 1000, (options.batch, options.prompt), generator=torch.Generator().manual_seed(1)).to(
        first
    )
    rate, first_seconds = tokens_per_second(model, prompt, options.new_tokens, options.device)
    plain, names = dequantised(model)
    with torch.no_grad():
        ours, theirs = model(prompt).logits.float().to(first), plain(prompt).logits.float()
        hooks = [plain.get_submodule(name).register_forward_pre_hook(round_activations) for name in names]
        rounded = plain(prompt).logits.float()
    for hook in hooks:
        hook.remove()

    def error_of(logits) -> float:
        # The median, because a token whose router is undecided may go to another expert.
        return ((logits - theirs).norm(dim=-1) / theirs.norm(dim=-1)).median().item()

    plain_rate, _ = tokens_per_second(plain, prompt, options.new_tokens, options.device)
    return {
        "model": architecture,
        "devices": sorted(devices),
        "fp8_parameters": fp8,
        "fp8_share": fp8 / sum(p.numel() for p in model.parameters() if p.dim() > 1),
        "logits_error": error_of(ours),
        "rounding_error": error_of(rounded),
        "first_s": first_seconds,
        "tokens_per_s": rate,
        "bf16_tokens_per_s": plain_rate,
        "transformers": transformers.__version__,
    }


def in_process(architecture: str, folder: Path, cache: Path) -> dict:
    """Runs this script for one model with its own cache, and adds how many kernels were compiled and kept."""
    environment = os.environ | {"OCTILE_CACHE_DIR": str(cache), "HF_HUB_OFFLINE": "1"}
    result = folder / "result.json"
    command = [sys.executable, *sys.argv, "--run", architecture, "--folder", str(folder)]
    subprocess.run(command, check=True, env=environment)

    def told(*words: str):
        command = [sys.executable, "-m", "octile", "cache", *words, "--json"]
        return json.loads(subprocess.run(command, check=True, env=environment, capture_output=True).stdout)

    return json.loads(result.read_text()) | {
        "compiles": told("stats")["total"]["misses"],
        "kernels": len(told("list")),
    }


def record(first: dict, second: dict, options) -> None:
    """Records the rate of a model's second process, and the seconds of the first generation."""
    records = Records(options.records, options.device)
    what = f"transformers {first['model']} size={options.size} devices={len(first['devices'])} batch={options.batch}"
    records.add(
        what,
        "tokens/s",
        second["tokens_per_s"],
        protocol_of(
            "host", 1, interleaved=False, note=f"greedy, {options.new_tokens} new tokens behind {options.prompt}"
        ),
        part="generate",
        peers=[peer_of("bf16", second["bf16_tokens_per_s"])],
        logits_error=first["logits_error"],
        rounding_error=first["rounding_error"],
        kernels=first["kernels"],
        first_s=first["first_s"],
        second_process_first_s=second["first_s"],
        transformers=first["transformers"],
    )


def holds(first: dict, second: dict, options) -> bool:
    """Prints the row of a model and of its second process. Returns whether the checks hold."""
    checks = {
        # Inputs of an expert's second product are rounded too, which the hooks do not see.
        "logits": 0.005 < first["logits_error"] < 1.5 * first["rounding_error"],
        "layers in FP8": first["fp8_share"] > 0.5,
        "every kernel compiled once": first["compiles"] == first["kernels"] == second["compiles"],
        "kernels": options.device == "cpu" or first["kernels"] > 0,
        "devices": options.device == "cpu" or len(first["devices"]) == options.devices,
    }
    print(
        f"{first['model']:9} {len(first['devices'])} device(s)  error {first['logits_error']:.4f} "
        f"(of rounding {first['rounding_error']:.4f})  "
        f"{first['kernels']} kernels, {first['compiles']} compiles, then {second['compiles'] - first['compiles']}  "
        f"first {first['first_s']:.2f} s, then {second['first_s']:.2f} s  {second['tokens_per_s']:.1f} tokens/s "
        f"({second['bf16_tokens_per_s']:.1f} in bf16)",
        flush=True,
    )
    for name, good in checks.items():
        if not good:
            print(f"  FAILS: {name}", flush=True)
    return all(checks.values())


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--devices", type=int, default=1, help="GPUs that the layers are spread over")
    parser.add_argument("--size", default="small", choices=list(GENERATED))
    parser.add_argument("--models", default=",".join(ARCHITECTURES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--run", help=argparse.SUPPRESS)  # one model in this process
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        result = run(options.run, options.folder, options)
        (options.folder / "result.json").write_text(json.dumps(result))
        return 0
    good = True
    for architecture in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "cache"
            first, second = (in_process(architecture, Path(folder), cache) for _ in range(2))
            good &= holds(first, second, options)
            record(first, second, options)
    print(f"transformers {first['transformers']}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
