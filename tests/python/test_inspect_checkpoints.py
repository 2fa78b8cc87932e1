"""`octile inspect` of block-FP8 checkpoints: those of export_hf, and those that transformers saves of a loaded one."""

import json
import subprocess

import pytest
import torch

import octile
import octile.torch as ot

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4),
}


@pytest.fixture(scope="module", autouse=True)
def computed_by_octile():
    ot.use_in_transformers(host=True)


def records(*arguments):
    command = [octile.command(), "inspect", "--json", *arguments]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def fp8_tensors(folder):
    """Returns the records of the FP8 tensors of a checkpoint about which there is nothing to say."""
    first, *tensors, last = records(folder)
    assert first["recipes"] == ["blockwise:f32"]
    assert not last["problems"] and not last["remarks"] and not last["nonfinite"]
    return {tensor["name"]: tensor for tensor in tensors if "held" in tensor}


@pytest.mark.parametrize("family", FAMILIES)
def test_codes_and_scales_of_both_writers(family, tmp_path):
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.bfloat16).eval()
    model.save_pretrained(tmp_path / "bf16")
    ot.convert(model, ot.Recipe(scales="f32"), min_dims=64, fuse=False)
    ot.export_hf(model, tmp_path / "octile")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "octile", dtype=torch.bfloat16)
    again.save_pretrained(tmp_path / "transformers")
    layers, experts = 2, 4 if family == "mixtral" else 1
    found = {writer: fp8_tensors(tmp_path / writer) for writer in ("octile", "transformers")}
    for tensors in found.values():
        assert sum(tensor["matrices"] for tensor in tensors.values()) == layers * (4 + 3 * experts)
        for tensor in tensors.values():
            held = tensor["held"]
            rows, columns = tensor["shape"][-2:]
            blocks = -(-rows // 128) * -(-columns // 128) * tensor["matrices"]
            assert (held["scales"], held["blocks"], held["bad_scales"]) == (blocks, blocks, 0)
            assert held["at_largest_share"] > 0 and held["blocks_half_used"] == 0
    assert {name: tensor["held"] for name, tensor in found["octile"].items()} == {
        name: tensor["held"] for name, tensor in found["transformers"].items()}
    *_, last = records("--pair", tmp_path / "octile", tmp_path / "transformers")
    assert (last["differing"], last["problems"], last["remarks"]) == (0, [], [])
    _, *pairs, last = records("--pair", tmp_path / "bf16", tmp_path / "octile")
    assert not last["problems"] and not last["remarks"]
    losses = {pair["name"]: pair["snr_db"] for pair in pairs if pair["b_dtype"] == "F8_E4M3"}
    assert losses.keys() == found["octile"].keys()
    assert all(29 < snr_db < 35 for snr_db in losses.values())
