"""`octile shapes` of checkpoints that transformers and safetensors wrote: headers and configuration say the same."""

import json
import re
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file
load_file = pytest.importorskip("safetensors.torch").load_file

COMMON = {
    "hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "vocab_size": 512, "tie_word_embeddings": False,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 128, "first_k_dense_replace": 1,
}  # fmt: skip
KINDS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "olmo3": {},
    "seed_oss": {"head_dim": 64},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 64},
    "glm4_moe": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "head_dim": 64,
    },
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64},
    "qwen3_next": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 64,
        "shared_expert_intermediate_size": 128, "num_hidden_layers": 4, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    },
}  # fmt: skip
QUANTIZATION = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
# Left out by the headers too: what no kernel multiplies by.
KEPT = ("embed_tokens", "lm_head", "gate", "router", "in_proj_ba")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of tiny models, as ``save_pretrained`` writes them."""
    folders = {}
    for kind, keys in KINDS.items():
        config = transformers.AutoConfig.for_model(kind, **(COMMON | keys))
        folders[kind] = tmp_path_factory.mktemp(kind)
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folders[kind])
    return folders


def call(*words):
    words = [sys.executable, "-m", "octile", "shapes", "--json", "--layout", "separate", *words]
    return subprocess.run(words, check=False, capture_output=True, text=True)


def shapes(*folders):
    called = call(*(word for folder in folders for word in ("--model", str(folder))))
    assert called.returncode == 0, called.stderr
    return json.loads(called.stdout)["models"]


def shares(folder, ranks):
    """Returns what is FP8 on a rank, or what the ranks' number has to divide."""
    called = call("--tp", ranks, "--model", str(folder))
    if called.returncode != 0:
        return re.search(r", (\d+), for (\S+):", called.stderr).groups()
    return rows(json.loads(called.stdout)["models"][0])


def rows(told):
    """Returns what is FP8: name, layers, sizes, experts and recipe of each weight."""
    return {
        (w["role"], w["layers"], w["n"], w["k"], w.get("groups", 0), w["bias"], w["recipe"]) for w in told["weights"]
    }


def copied(folder, to, state, **keys):
    """Writes a checkpoint with another state and other keys of its configuration."""
    config = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | keys))
    if state is not None:
        save_file(state, to / "model.safetensors")
    return to


def in_blocks(state):
    """Returns the state with matrices of layers in FP8, and a scale for each block of 128 x 128."""
    found = {}
    for name, tensor in state.items():
        if tensor.dim() != 2 or any(part in KEPT for part in name.split(".")) or ".layers." not in name:
            found[name] = tensor
            continue
        n, k = tensor.shape
        found[name] = tensor.to(torch.float8_e4m3fn)
        found[name + "_scale_inv"] = torch.ones(-(-n // 128), -(-k // 128))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_headers_agree_with_the_configuration(checkpoints, tmp_path, kind):
    alone = copied(checkpoints[kind], tmp_path, None)
    with_headers, by_config = shapes(checkpoints[kind], alone)
    # transformers does not build the layers of multi-token prediction.
    mtp = "eh_proj [256, 512] is not in the checkpoint: its size is the config's"
    has_mtp = json.loads((alone / "config.json").read_text()).get("num_nextn_predict_layers", 0) > 0
    assert with_headers["remarks"] == ([mtp] if has_mtp else [])
    assert rows(with_headers) == rows(by_config)
    assert with_headers["parameters"] == by_config["parameters"]


@pytest.mark.parametrize("kind", KINDS)
def test_headers_alone_say_what_the_configuration_does(checkpoints, tmp_path, kind):
    state = load_file(checkpoints[kind] / "model.safetensors")
    unknown = copied(checkpoints[kind], tmp_path, state, model_type="nobody_knows", architectures=[])
    by_headers, by_config = shapes(unknown, checkpoints[kind])
    assert rows(by_headers) == rows(by_config)
    for ranks in ("2", "4"):
        assert shares(unknown, ranks) == shares(checkpoints[kind], ranks)
    # Buffers of routers are in a checkpoint, and no parameters of a module.
    buffers = sum(tensor.numel() for name, tensor in state.items() if name.endswith("e_score_correction_bias"))
    assert by_headers["parameters"] == by_config["parameters"] + buffers


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "mixtral", "deepseek_v3", "qwen3_next"])
def test_a_checkpoint_in_blocks_of_fp8(checkpoints, tmp_path, kind):
    state = in_blocks(load_file(checkpoints[kind] / "model.safetensors"))
    for name, keys in (("known", {}), ("unknown", {"model_type": "nobody_knows", "architectures": []})):
        (tmp_path / name).mkdir()
        copied(checkpoints[kind], tmp_path / name, state, quantization_config=QUANTIZATION, **keys)
    (tmp_path / "config").mkdir()
    copied(checkpoints[kind], tmp_path / "config", None, quantization_config=QUANTIZATION)
    known, unknown, by_config = shapes(tmp_path / "known", tmp_path / "unknown", tmp_path / "config")
    assert {row[-1] for row in rows(known)} == {"blockwise:f32"}
    assert rows(known) == rows(by_config) == rows(unknown)
