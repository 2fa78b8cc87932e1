"""Block-FP8 checkpoints that export_hf writes: what they hold, that transformers loads them, and what is refused."""

import copy
import json
import re

import pytest
import torch
from rank_processes import run_ranks
from torch import nn

import octile.torch as ot

transformers = pytest.importorskip("transformers")
load_file = pytest.importorskip("safetensors.torch").load_file

SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MIXTURE = {"moe_intermediate_size": 128, "num_experts_per_tok": 2}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4),
    "qwen2": lambda: transformers.Qwen2MoeConfig(
        **SIZES, **MIXTURE, num_experts=4, shared_expert_intermediate_size=128
    ),
    "qwen3": lambda: transformers.Qwen3MoeConfig(**SIZES, **MIXTURE, num_experts=4, head_dim=64),
    "deepseek": lambda: transformers.DeepseekV3Config(
        **SIZES, **MIXTURE, head_dim=64, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1,
        q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64,
    ),
    "olmoe": lambda: transformers.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2),
    "ernie": lambda: transformers.Ernie4_5_MoeConfig(**SIZES, moe_intermediate_size=128, moe_num_experts=4, moe_k=2),
}  # fmt: skip
# The projections of the experts of the last layer, as published checkpoints name them: gate, up and down.
EXPERTS = {
    "mixtral": ("model.layers.1.block_sparse_moe.experts.{}.{}.weight", "w1", "w3", "w2"),
    **dict.fromkeys(
        ("qwen2", "qwen3", "deepseek", "olmoe", "ernie"),
        ("model.layers.1.mlp.experts.{}.{}.weight", "gate_proj", "up_proj", "down_proj"),
    ),
}
# Weights of the last layer that stay beside the output layer.
KEPT = {
    "llama": [],
    "tied": [],
    "mixtral": ["model.layers.1.block_sparse_moe.gate"],
    "qwen2": ["model.layers.1.mlp.gate", "model.layers.1.mlp.shared_expert_gate"],
    **dict.fromkeys(("qwen3", "deepseek", "olmoe", "ernie"), ["model.layers.1.mlp.gate"]),
}


@pytest.fixture(scope="module", autouse=True)
def computed_by_octile():
    ot.use_in_transformers(host=True)


def made(family, convert=True, **more):
    config = FAMILIES[family]() if isinstance(family, str) else family
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **more).eval()
    if convert:
        ot.convert(model, ot.Recipe(scales="f32"), min_dims=64, fuse=False)
    return model


def without_fp8_experts(model):
    """Returns the model with its experts in BF16, as those are that stay on disk."""
    for name, layer in model.named_modules():
        if ".octile_" in name:
            layer.fp8 = False
    return model


def loaded(folder, kind=transformers.AutoModelForCausalLM):
    """Returns the model; the loader found each tensor that it looked for, and nothing else."""
    model, report = kind.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def quantization(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def difference(model, other):
    """The relative difference of the logits: the median, because a token whose router is undecided may go to another
    expert."""
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        a, b = model(tokens).logits.float(), other(tokens).logits.float()
    return ((a - b).norm(dim=-1) / b.norm(dim=-1)).median().item()


def dequantised(folder):
    """Returns the BF16 model that transformers makes of a checkpoint."""
    config = transformers.FineGrainedFP8Config(dequantize=True)
    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=config).eval()


def same_bytes(a, b):
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].view(torch.uint8).equal(b[name].view(torch.uint8)) for name in a
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_names_formats_and_logits_of_a_family(family, tmp_path):
    model = made(family)
    ot.export_hf(model, tmp_path / "a")
    state = load_file(tmp_path / "a" / "model.safetensors")
    kept = quantization(tmp_path / "a")["modules_to_not_convert"]
    assert [name for name in kept if "layers.0" not in name and "moe_statics" not in name] == [*KEPT[family], "lm_head"]
    assert not any(name.endswith(("gate_up_proj", "experts.down_proj")) for name in state)
    for name, tensor in state.items():
        if tensor.dtype == torch.float8_e4m3fn:
            blocks = tuple(-(-size // 128) for size in tensor.shape)
            assert name.endswith(".weight") and len(blocks) == 2
            scales = state[name + "_scale_inv"]
            assert scales.dtype == torch.float32 and tuple(scales.shape) == blocks
        elif name.endswith(".weight") and tensor.dim() == 2 and "embed" not in name:
            assert name.removesuffix(".weight") in kept
    if family in EXPERTS:
        pattern, *names = EXPERTS[family]
        experts = model.model.layers[1].mlp.experts
        gate, up = experts.gate_up_proj[3].chunk(2)
        for name, weight in zip(names, (gate, up, experts.down_proj[3]), strict=True):
            q = ot.quantize(weight.detach(), granularity="128x128", scales="f32")
            written = state[pattern.format(3, name)]
            assert written.view(torch.uint8).equal(q.codes.view(torch.uint8))
            assert state[pattern.format(3, name) + "_scale_inv"].equal(q.scales[:, : -(-weight.shape[1] // 128)])
    again = loaded(tmp_path / "a")
    error = difference(again, model)
    assert error < 0.08 if family in EXPERTS else error == 0.0
    ot.export_hf(again, tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("family", ["tied", "mixtral", "qwen3"])
def test_scales_that_are_powers_of_two(family, tmp_path):
    model = made(family)
    ot.export_hf(model, tmp_path / "a", scales="ue8m0")
    assert quantization(tmp_path / "a")["scale_fmt"] == "ue8m0"
    state = load_file(tmp_path / "a" / "model.safetensors")
    scales = torch.cat([tensor.flatten() for name, tensor in state.items() if name.endswith("_scale_inv")])
    assert scales.dtype == torch.float32 and (torch.frexp(scales).mantissa == 0.5).all()
    again = loaded(tmp_path / "a")
    assert again.model.layers[1].self_attn.q_proj.weight_scale_inv.dtype == torch.float8_e8m0fnu
    assert 0 < difference(again, dequantised(tmp_path / "a")) < 0.08
    ot.export_hf(again, tmp_path / "b", scales="ue8m0")
    ot.export_hf(again, tmp_path / "c")  # powers of two are float32 scales too
    assert same_bytes(load_file(tmp_path / "b" / "model.safetensors"), state)
    assert same_bytes(load_file(tmp_path / "c" / "model.safetensors"), state)
    assert "scale_fmt" not in quantization(tmp_path / "c")


@pytest.mark.parametrize(
    "family, scales", [("tied", "ue8m0"), ("mixtral", "f32"), ("mixtral", "ue8m0"), ("deepseek", "f32")]
)
def test_weights_are_those_of_the_model_within_fp8s_error(family, scales, tmp_path):
    model = made(family)
    ot.export_hf(model, tmp_path, scales=scales)
    again, rounded = dequantised(tmp_path).state_dict(), 0
    for name, weight in model.state_dict().items():
        fp8 = weight.dim() >= 2 and "embed" not in name and "lm_head" not in name and "gate.weight" not in name
        if not fp8:
            assert again[name].equal(weight), name
            continue
        error = ((again[name].float() - weight.float()).norm() / weight.float().norm()).item()
        assert 0.01 < error < 0.035, (name, error)
        rounded += 1
    assert rounded >= 2 * 6


def test_other_scales_do_not_become_powers_of_two(tmp_path):
    ot.export_hf(made("llama"), tmp_path / "a")
    with pytest.raises(ValueError, match="scales is 'ue8m0'; allowed is 'f32', because .* is in FP8 with other scales"):
        ot.export_hf(loaded(tmp_path / "a"), tmp_path / "b", scales="ue8m0")


# ---- experts that stay


def gpt_oss():
    return transformers.GptOssConfig(**SIZES, head_dim=64, num_local_experts=4, num_experts_per_tok=2)


STAY = {
    "a bias": gpt_oss,
    "halves that are not blocks": lambda: transformers.MixtralConfig(
        **SIZES | {"intermediate_size": 192}, num_local_experts=4
    ),
    "names of its own": lambda: transformers.GraniteMoeConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}


@pytest.mark.parametrize("why", STAY)
def test_experts_that_no_loader_takes_in_fp8(why, tmp_path):
    model = made(STAY[why]())
    with pytest.raises(ValueError, match="experts is 'fp8'; allowed is 'keep' for this model"):
        ot.export_hf(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    ot.export_hf(model, tmp_path / "a", experts="keep")
    assert difference(loaded(tmp_path / "a"), without_fp8_experts(model)) == 0.0


def test_experts_stay_if_asked(tmp_path):
    model = made("mixtral")
    ot.export_hf(model, tmp_path, experts="keep")
    kept = quantization(tmp_path)["modules_to_not_convert"]
    assert "model.layers.1.block_sparse_moe.experts" in kept
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    assert load_file(tmp_path / "model.safetensors")[name].equal(model.model.layers[1].mlp.experts.down_proj[3])
    assert difference(loaded(tmp_path), without_fp8_experts(model)) == 0.0


def test_experts_of_octile():
    model = nn.Sequential(ot.Experts(3, 256, 144), nn.Linear(16, 5))
    state = ot.block_fp8_state_dict(model)
    assert state["0.weight"].dtype == torch.float8_e4m3fn and state["0.weight_scale_inv"].shape == (3, 2, 2)
    q = ot.quantize(model[0].weight[2].detach(), granularity="128x128", scales="f32")
    assert state["0.weight"][2].view(torch.uint8).equal(q.codes.view(torch.uint8))
    assert state["0.weight_scale_inv"][2].equal(q.scales[:, :2])
    with pytest.raises(ValueError, match="model is 'Sequential'; allowed is one with FP8 layers"):
        ot.block_fp8_state_dict(model, experts="keep")


# ---- layers that stay


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_a_model_that_was_not_converted(family, tmp_path):
    model = made(family, convert=False)
    with pytest.raises(ValueError, match=r"model is '\w+ForCausalLM'; allowed is one with FP8 layers: call octile"):
        ot.export_hf(model, tmp_path / "a")
    ot.export_hf(model, tmp_path / "a", layers="all")
    ot.convert(model, min_dims=16, fuse=False)
    ot.export_hf(model, tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_plain_module_that_was_not_converted():
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 7))
    with pytest.raises(ValueError, match="model is 'Sequential'; allowed is one with FP8 layers"):
        ot.block_fp8_state_dict(model)
    assert ot.block_fp8_state_dict(model, layers="all")["0.weight"].dtype == torch.float8_e4m3fn
    with pytest.raises(ValueError, match="allowed is one with linear layers whose sizes are multiples of 16"):
        ot.block_fp8_state_dict(model[1:], layers="all")
    for name, value in (("scales", "pow2"), ("layers", "some"), ("experts", None)):
        with pytest.raises(ValueError, match=f"{name} is {value!r}; allowed are"):
            ot.block_fp8_state_dict(model, **{name: value})


def test_a_layer_of_other_sizes_stays(tmp_path):
    model = made("llama")
    model.model.extra = ot.Linear.from_linear(nn.Linear(128, 24, dtype=torch.bfloat16), unaligned="bf16")
    ot.export_hf(model, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["model.extra.weight"].equal(model.model.extra.weight)
    assert quantization(tmp_path)["modules_to_not_convert"] == ["model.extra", "lm_head"]
    state = ot.block_fp8_state_dict(nn.Sequential(ot.Linear(24, 7, unaligned="bf16"), ot.Linear(32, 16)))
    assert state["0.weight"].dtype == torch.float32 and state["1.weight"].dtype == torch.float8_e4m3fn


def test_a_layer_that_has_the_weight_of_an_embedding_stays(tmp_path):
    model = made("tied")
    model.lm_head = ot.Linear.from_linear(model.lm_head)
    ot.export_hf(model, tmp_path)
    assert quantization(tmp_path)["modules_to_not_convert"] == ["lm_head"]
    loaded(tmp_path)


def test_layers_that_transformers_keeps_in_fp32_stay(tmp_path):
    config = transformers.T5Config(d_model=128, d_kv=64, d_ff=256, num_layers=1, num_heads=2, vocab_size=64)
    model = transformers.T5ForConditionalGeneration(config).bfloat16()
    ot.convert(model, min_dims=64, fuse=False)
    assert isinstance(model.encoder.block[0].layer[1].DenseReluDense.wo, ot.Linear)
    ot.export_hf(model, tmp_path)
    assert "encoder.block.0.layer.1.DenseReluDense.wo" in quantization(tmp_path)["modules_to_not_convert"]
    again = loaded(tmp_path, transformers.AutoModelForSeq2SeqLM)
    wo = again.encoder.block[0].layer[1].DenseReluDense.wo
    assert wo.weight.equal(model.encoder.block[0].layer[1].DenseReluDense.wo.weight)
    assert again.encoder.block[0].layer[0].SelfAttention.q.weight.dtype == torch.float8_e4m3fn


class WithHead(transformers.LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.proj = nn.Linear(128, 7)


def test_a_name_that_would_name_converted_layers_too(tmp_path):
    model = WithHead(FAMILIES["llama"]())
    ot.convert(model, min_dims=64, fuse=False)
    with pytest.raises(ValueError, match="down_proj.weight is in FP8, but transformers loads it as it is, by the name"):
        ot.export_hf(model, tmp_path)


# ---- models that are something else


def test_weights_tied_by_hand_are_written_twice(tmp_path):
    model = made("llama")
    model.lm_head.weight = model.model.embed_tokens.weight
    ot.export_hf(model, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    assert state["lm_head.weight"].equal(state["model.embed_tokens.weight"])
    assert difference(loaded(tmp_path), model) == 0.0


def test_names_of_a_model_of_text_and_images(tmp_path):
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**SIZES),
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, image_size=28,
            patch_size=14, projection_dim=128,
        ),
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(config)
    ot.convert(model, min_dims=64, filter=lambda name, layer: "vision" not in name)
    model.save_pretrained(tmp_path / "bf16")
    ot.export_hf(model, tmp_path / "fp8")
    state = load_file(tmp_path / "fp8" / "model.safetensors")
    plain = load_file(tmp_path / "bf16" / "model.safetensors")
    assert {name for name in state if not name.endswith("_scale_inv")} == plain.keys()
    kept = quantization(tmp_path / "fp8")["modules_to_not_convert"]
    assert kept and all(name + ".weight" in plain for name in kept)
    again = loaded(tmp_path / "fp8", transformers.AutoModelForImageTextToText)
    layers = again.model.language_model.layers
    assert layers[1].mlp.up_proj.weight.dtype == torch.float8_e4m3fn


def test_adapters(tmp_path):
    lora = type("LoraLayer", (nn.Module,), {"__module__": "peft.tuners.lora.layer"})
    model = made("llama")
    model.model.layers[0].self_attn.adapter = lora()
    with pytest.raises(ValueError, match="model is 'one with an adapter of peft .*adapter.'; allowed is one without"):
        ot.export_hf(model, tmp_path)
    with pytest.raises(ValueError, match="model is 'a LoraLayer of peft'; .* what peft's merge_and_unload"):
        ot.block_fp8_state_dict(lora())


def test_adapters_of_peft(tmp_path):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(made("mixtral"), peft.LoraConfig(target_modules=["q_proj"], r=8))
    with pytest.raises(ValueError, match="of peft"):
        ot.export_hf(adapted, tmp_path / "a")
    nn.init.ones_(adapted.base_model.model.model.layers[0].self_attn.q_proj.lora_B["default"].weight)
    merged = adapted.merge_and_unload()
    ot.export_hf(merged, tmp_path / "a")
    assert difference(loaded(tmp_path / "a"), merged) < 0.08


def test_models_that_are_not_what_their_config_says(tmp_path):
    model = made("llama")
    del model.model.layers[1]
    with pytest.raises(ValueError, match=r"without model.layers.1.* \(and 8 more\)'; allowed are the layers"):
        ot.export_hf(model, tmp_path)
    model = made("llama")
    model.model.layers[1].mlp.up_proj = ot.Linear(128, 272, bias=False, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"up_proj.weight \(272, 128\)'; allowed is \(256, 128\)"):
        ot.export_hf(model, tmp_path)
    model = made("llama")
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    with pytest.raises(ValueError, match="without model.layers.0.mlp.up_proj.weight"):
        ot.export_hf(model, tmp_path)
    model = made("llama")
    head = model.lm_head.weight
    model.lm_head.weight = nn.Parameter(head.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match="lm_head.weight in torch.int8'; allowed are weights in bfloat16"):
        ot.export_hf(model, tmp_path)
    model.lm_head.weight = nn.Parameter(head.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(ValueError, match="lm_head.weight in FP8'; allowed are FP8 weights with scales of 128 x 128"):
        ot.export_hf(model, tmp_path)
    assert not any(tmp_path.iterdir())


def test_wrappers_of_torch_leave_no_name():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Sequential(ot.Linear(64, 32), nn.Sequential(ot.Linear(32, 32)))
    state = ot.block_fp8_state_dict(model)
    assert "1.0.weight_scale_inv" in state
    for wrapped in (
        torch.compile(model),
        nn.DataParallel(model),
        nn.Sequential(torch.compile(model[0]), checkpoint_wrapper(model[1])),
    ):
        assert same_bytes(ot.block_fp8_state_dict(wrapped), state)


# ---- states


def test_a_state_dict_for_a_model_without_memory(tmp_path):
    model = made("mixtral")
    state = copy.deepcopy(model.state_dict())
    with torch.device("meta"):
        empty = transformers.MixtralForCausalLM(FAMILIES["mixtral"]())
    ot.convert(empty, min_dims=64, fuse=False)
    with pytest.raises(ValueError, match="on the meta device'; allowed is one whose weights are in memory, or"):
        ot.export_hf(empty, tmp_path / "a")
    ot.export_hf(empty, tmp_path / "a", state_dict=state)
    ot.export_hf(model, tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_a_state_dict_has_its_way_over_the_model():
    model = nn.Sequential(ot.Linear(64, 32), nn.LayerNorm(32))
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    made = ot.block_fp8_state_dict(model, state)
    assert made["1.weight"].equal(torch.full((32,), 2.0))
    q = ot.quantize(state["0.weight"], granularity="128x128", scales="f32")
    assert made["0.weight"].view(torch.uint8).equal(q.codes.view(torch.uint8))


def test_state_dicts_of_other_models():
    model = nn.Sequential(ot.Linear(64, 32))
    state = model.state_dict()
    for given, kind, sentence in (
        ({}, ValueError, "state_dict is 'one without 0.bias (and 1 more)'; allowed is the whole state"),
        (state | {"1.weight": torch.ones(3)}, ValueError, "state_dict is 'one with 1.weight'; allowed are the names"),
        (state | {"0.bias": torch.ones(3)}, ValueError, "one with 0.bias (3,)'; allowed is (32,), in memory"),
        (state | {"0.bias": torch.ones(32, device="meta")}, ValueError, "0.bias (32,) on the meta device'"),
        (state | {"0.bias": None}, TypeError, "state_dict['0.bias'] is of type NoneType; allowed is torch.Tensor"),
        ([state], TypeError, "state_dict is of type list; allowed is a dict of names and tensors, or None"),
    ):
        with pytest.raises(kind, match=re.escape(sentence)):
            ot.block_fp8_state_dict(model, given)


def sharded_rank(rank, folder):
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for family in ("tied", "mixtral"):
        torch.manual_seed(0)
        model = made(family)
        if rank == 0:
            ot.export_hf(model, f"{folder}/{family}/whole")
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        ot.export_hf(model, f"{folder}/{family}/sharded_by_{rank}")
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        if rank == 0:
            ot.export_hf(model, f"{folder}/{family}/given", state_dict=state)
        shards = get_model_state_dict(model)
        made_here = ot.block_fp8_state_dict(model, shards, experts="keep")
        assert not any(hasattr(tensor, "full_tensor") for tensor in made_here.values())
        assert made_here["model.layers.0.self_attn.q_proj.weight"].dtype == torch.float8_e4m3fn
    dist.destroy_process_group()


def test_shards_of_fsdp2_become_the_checkpoint_of_the_whole_model(tmp_path):
    run_ranks(sharded_rank, (str(tmp_path),), 2, tmp_path)
    for family in ("tied", "mixtral"):
        folder = tmp_path / family
        assert not (folder / "sharded_by_1").exists()
        for name in ("model.safetensors", "config.json"):
            whole = (folder / "whole" / name).read_bytes()
            assert (folder / "sharded_by_0" / name).read_bytes() == whole
            assert (folder / "given" / name).read_bytes() == whole
        loaded(folder / "sharded_by_0")


# ---- the folder


def test_a_checkpoint_takes_the_place_of_an_earlier_one(tmp_path):
    model = made("llama")
    for name in ("tokenizer.json", "model.safetensors.bak"):
        (tmp_path / name).write_text("mine")
    ot.export_hf(model, tmp_path, shard_bytes=100_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1 and not (tmp_path / "model.safetensors").exists()
    ot.export_hf(model, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "model.safetensors", "config.json", "tokenizer.json", "model.safetensors.bak",
    }  # fmt: skip
    ot.export_hf(model, tmp_path, shard_bytes=100_000)
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    assert difference(loaded(tmp_path), model) == 0.0
