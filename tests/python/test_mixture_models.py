"""Models of transformers at toy size, converted: they train as in BF16, save what an unconverted model loads, and go on
from there with the same bits."""

import copy

import pytest
import torch

import octile.torch as ot

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
CONFIGS = {
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES, head_dim=16, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4}, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16,
        qk_nope_head_dim=16, v_head_dim=16,
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES | {"intermediate_size": 32}, head_dim=16, num_local_experts=4, num_experts_per_tok=2
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        **SIZES | {"intermediate_size": 32}, head_dim=16, num_local_experts=4, num_experts_per_tok=2
    ),
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=16),
}  # fmt: skip
MIXTURES = {"qwen3_moe": 2, "deepseek_v3": 1, "gpt_oss": 2, "mixtral": 2}


def train(model, steps, optimizer=None):
    """Returns the losses, and the optimizer."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 24, (2, 16), generator=generator)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, optimizer


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_trains_saves_and_resumes(name, tmp_path):
    plain = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.bfloat16)
    model = copy.deepcopy(plain)
    report = ot.convert(model, min_dims=16)
    assert len(report.experts) == MIXTURES.get(name, 0) and not [n for n in report.skipped if "experts" in n], report
    (losses, optimizer), (wanted, _) = train(model, range(5)), train(plain, range(5))
    assert losses[-1] < losses[0] and all(abs(a - b) < 0.02 * b for a, b in zip(losses, wanted, strict=True))

    model.save_pretrained(tmp_path)
    plain.load_state_dict(model.state_dict())
    other, told = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not any(told.values()), told
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert all(value.equal(state[key]) for key, value in other.state_dict().items())

    ot.convert(other, min_dims=16)
    resumed = torch.optim.AdamW(other.parameters(), lr=2e-3, foreach=False)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert train(other.train(), range(5, 7), resumed)[0] == train(model, range(5, 7), optimizer)[0]
    assert all(a.equal(b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True))


def test_generation_leaves_the_converted_experts_theirs():
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["qwen3_moe"](), dtype=torch.bfloat16)
    ot.convert(model, min_dims=16)
    model.set_experts_implementation("batched_mm")
    ids = torch.randint(0, 96, (1, 4))
    with torch.no_grad():
        before = torch.ops.octile.weight_quantizations()
        tokens = model.eval().generate(ids, max_new_tokens=3, do_sample=False)
        assert torch.ops.octile.weight_quantizations() > before and tokens.shape == (1, 7)
        wanted = model(tokens[:, :-1]).logits[:, 3:].argmax(-1)
    assert tokens[:, 4:].equal(wanted)
