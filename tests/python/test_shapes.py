"""`octile shapes` against transformers, which builds each model on the meta device."""

import collections
import json
import re
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

# Types that transformers does not have, and those whose models they are.
ABSENT = {"kimi_k2": "deepseek_v3", "minimax_text_01": "minimax", "minimax_m1": "minimax"}
MODELS = [
    "llama-3-8b", "llama-3-70b", "llama-3.2-1b", "llama-4-scout", "llama-4-maverick", "qwen2.5-72b", "qwen3-32b",
    "qwen3-235b-a22b", "qwen3-next-80b-a3b", "qwen3.5-397b-a17b", "mixtral-8x7b", "mistral-small-4",
    "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-v3.2", "kimi-k2", "glm-4.5", "glm-4.5-air",
    "glm-4.7-flash", "glm-5", "minimax-text-01", "minimax-m2", "gpt-oss-120b", "gemma-3-27b", "hunyuan-a13b", "hy3",
    "ernie-4.5-21b-a3b", "ernie-4.5-300b-a47b", "mimo-v2-flash", "seed-oss-36b", "olmo-3-32b",
]  # fmt: skip
# Types of transformers without a shipped model: their default configurations, and what these leave open.
DOTS1 = {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
DEFAULTS = {
    "mistral": {}, "ministral3": {}, "qwen3_5_text": {}, "qwen2_moe": {}, "phi3": {}, "phimoe": {"lm_head_bias": True},
    "gemma": {}, "gemma2": {}, "granite": {}, "granitemoe": {}, "granitemoeshared": {"shared_intermediate_size": 1024},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16}, "exaone4": {}, "exaone_moe": {}, "ernie4_5": {},
    "glm": {}, "glm4": {}, "cohere": {}, "cohere2": {}, "smollm3": {}, "hunyuan_v1_dense": {"head_dim": 128},
    "arcee": {}, "nemotron": {"head_dim": 128, "num_key_value_heads": 8}, "dots1": DOTS1, "solar_open": {},
    "sarvam_moe": {}, "sarvam_mla": {}, "youtu": {}, "afmoe": {}, "olmo": {}, "olmo2": {}, "olmoe": {}, "flex_olmo": {},
    "bailing_hybrid": {}, "longcat_flash": {}, "kimi_linear": {},
}  # fmt: skip
# Language models of wrappers without a class of their own: the default wrappers, of which vision is left out.
WRAPPERS = {"qwen2_5_vl": {}, "qwen3_vl": {}, "qwen3_vl_moe": {}, "glm4v_moe": {"text_config": {"head_dim": 128}}}


def call(*words):
    words = [sys.executable, "-m", "octile", "shapes", *words]
    return subprocess.run(words, check=False, capture_output=True, text=True)


def shapes(*words):
    called = call("--json", *words)
    assert called.returncode == 0, called.stderr
    return json.loads(called.stdout)


@pytest.fixture(scope="module")
def configs(request):
    """The shipped configurations, as the source tree has them."""
    folder = request.config.rootpath / "tools" / "models" / "configs"
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def transformers_config(config):
    """Returns what transformers makes of the part of a configuration that describes the language model."""
    text = dict(config.get("text_config", config))
    text.pop("quantization_config", None)
    kind = text.pop("model_type")
    if "attn_type_list" in text:
        text["layer_types"] = ["full_attention" if full else "linear_attention" for full in text.pop("attn_type_list")]
    return transformers.AutoConfig.for_model(ABSENT.get(kind, kind), **text)


def built(config):
    named = {"mistral4": "Mistral4ForCausalLM"}.get(config.model_type)
    kind = getattr(transformers, named) if named else transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        return kind(config)


def of_transformers(model):
    """Returns how often each weight [n, k] occurs, with and without bias, and each tensor of experts [E, n, k]."""
    parameters = dict(model.named_parameters())
    config = model.config.get_text_config()
    hidden = config.hidden_size
    # LongCat's experts without weights have rows of gate_up there.
    zero = getattr(config, "zero_expert_num", 0)
    padding = 0
    found = collections.Counter()
    for name, tensor in parameters.items():
        shape = tuple(tensor.shape)
        if "experts." in name and tensor.dim() == 3:
            # gate_up reads the hidden size, down writes it; some models have both transposed.
            gate_up = "gate_up" in name
            columns = shape[2] if gate_up else shape[1]
            transposed = config.model_type in ("gpt_oss", "llama4_text") or columns != hidden
            n, k = (shape[2], shape[1]) if transposed else shape[1:]
            unused = zero if gate_up else 0
            padding += unused * n * k
            found[(shape[0] - unused, n, k, name + "_bias" in parameters)] += 1
        elif tensor.dim() == 2 and name.endswith("weight"):
            found[(0, *shape, name.removesuffix("weight") + "bias" in parameters)] += 1
    return found, sum(tensor.numel() for tensor in parameters.values()) - padding


def of_octile(told):
    found = collections.Counter()
    for weight in told["weights"] + told["left_out"]:
        if "k" in weight and weight["layers"] > 0:
            bias = weight["bias"] or weight["role"] in biased_routers(told)
            found[(weight.get("groups", 0), weight["n"], weight["k"], bias)] += weight["layers"]
    return found, told["parameters"]


def biased_routers(told):
    """The biases of routers are vectors of their own in `octile shapes`."""
    if told["model_type"] != "gpt_oss":
        return set()
    return {row["role"].removesuffix(" bias") for row in told["left_out"] if row["role"].endswith(" bias")}


@pytest.fixture(scope="module")
def told(configs):
    words = [word for name in MODELS for word in ("--model", name)]
    return dict(zip(MODELS, shapes("--layout", "separate", *words)["models"], strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_weights_that_transformers_builds(configs, told, name):
    assert of_octile(told[name]) == of_transformers(built(transformers_config(configs[name])))


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_default_configuration_too(tmp_path, kind):
    config = transformers.AutoConfig.for_model(kind, **DEFAULTS[kind])
    config.save_pretrained(tmp_path)
    [told] = shapes("--layout", "separate", "--model", str(tmp_path))["models"]
    assert of_octile(told) == of_transformers(built(config))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_the_language_model_of_a_wrapper(tmp_path, kind):
    config = transformers.AutoConfig.for_model(kind, **WRAPPERS[kind])
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)](config)
    model.model.visual = None
    [told] = shapes("--layout", "separate", "--model", str(tmp_path))["models"]
    assert of_octile(told) == of_transformers(model)
    (tmp_path / "config.json").write_text(json.dumps({**config.get_text_config().to_dict(), "model_type": kind}))
    [flat] = shapes("--layout", "separate", "--model", str(tmp_path))["models"]
    assert flat["weights"] == told["weights"]


def test_minimax_m3_has_an_indexer_where_its_layers_are_sparse(tmp_path):
    sparse = [0, 0, 1, 1] * 2
    pattern = {"num_hidden_layers": 8, "moe_layer_freq": [0, 1, 1, 1] * 2, "tie_word_embeddings": False}
    attention = {"sparse_attention_freq": sparse, "sparse_num_index_heads": 4, "sparse_index_dim": 128}
    config = transformers.AutoConfig.for_model(
        "minimax_m3_vl_text", **pattern, sparse_attention_config=attention
    )
    expected = of_transformers(built(config))
    config.save_pretrained(tmp_path)
    for published in (None, {**config.to_dict(), **pattern, "sparse_attention_config": attention}):
        if published:
            for key in ("layer_types", "mlp_layer_types", "index_n_heads", "index_head_dim"):
                del published[key]
            (tmp_path / "config.json").write_text(json.dumps(published))
        [told] = shapes("--layout", "separate", "--model", str(tmp_path))["models"]
        assert of_octile(told) == expected


# How a plan of transformers divides a weight [n, k], as `octile shapes` names it. Experts of Llama 4 are [k, n] there.
SPLITS = {
    "colwise": "n", "packed_colwise": "n", "colwise_gather_output": "n", "rowwise": "k", "rowwise_split_input": "k",
    "mla_kv_a_proj": "-",
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_divided_as_transformers_divides_them(configs, told, name):
    plan = transformers_config(configs[name]).base_model_tp_plan
    transposed = told[name]["model_type"] == "llama4_text"
    compared = 0
    for weight in told[name]["weights"]:
        style = plan.get(f"layers.*.{weight['role']}")
        # Linear attention is divided by heads here, and gathered there.
        if style is None or weight["role"] == "linear_attn.out_proj" or (transposed and "groups" in weight):
            continue
        assert (weight["role"], weight["split"]) == (weight["role"], SPLITS[style])
        compared += 1
    assert compared > 0 or name in ("gpt-oss-120b", "hunyuan-a13b", "llama-4-scout")


@pytest.mark.parametrize("name", MODELS)
def test_experts_are_divided_as_transformers_divides_them(configs, told, name):
    plan = getattr(transformers_config(configs[name]), "base_model_ep_plan", None) or {}
    grouped = {key.removeprefix("layers.*.") for key, style in plan.items() if style == "grouped_gemm"}
    [rank] = shapes("--layout", "separate", "--model", name, "--ep", "4")["models"]
    compared = 0
    for weight, whole in zip(rank["weights"], told[name]["weights"], strict=True):
        divided = weight["role"] in grouped or (name.startswith("llama-4") and "groups" in whole)
        assert (weight["role"], "groups" in whole) == (whole["role"], divided)
        assert weight.get("groups", 0) == whole.get("groups", 0) // 4
        assert (weight["n"], weight["k"]) == (whole["n"], whole["k"])
        compared += divided
    # 4-bit experts have no kernel, and plans divide their biases too.
    assert compared or not grouped or name.startswith("gpt-oss")


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_hold_the_model_together(told, name):
    [rank] = shapes("--layout", "separate", "--model", name, "--tp", "2", "--ep", "2")["models"]
    for weight, whole in zip(rank["weights"], told[name]["weights"], strict=True):
        shares = 2 if "groups" in whole or whole["split"] != "-" else 1
        held = shares * weight.get("groups", 1) * weight["n"] * weight["k"]
        assert (weight["role"], held) == (whole["role"], whole.get("groups", 1) * whole["n"] * whole["k"])
        assert weight["layers"] == whole["layers"]
    assert rank["parameters"] == told[name]["parameters"]


def test_every_type_is_compared(request, configs):
    # A unit test compares this list with the rows.
    listed = (request.config.rootpath / "docs" / "models.md").read_text()
    types = set(re.findall(r"`(\w+)`", re.search(r"The types with a row.*?\n\n(.*?)\.\n", listed, re.DOTALL).group(1)))
    known = set(transformers.CONFIG_MAPPING.keys())
    assert types - known == set(ABSENT)
    texts = [configs[name].get("text_config", configs[name]) for name in MODELS]
    wrappers = {configs[name]["model_type"] for name in MODELS} | {"qwen3_5", *WRAPPERS}
    wrapped = {transformers.AutoConfig.for_model(kind).get_text_config().model_type for kind in WRAPPERS}
    rest = types - {text["model_type"] for text in texts} - wrappers - wrapped - set(DEFAULTS)
    assert rest == {"minimax", "minimax_m1", "minimax_m3_vl", "minimax_m3_vl_text"}
