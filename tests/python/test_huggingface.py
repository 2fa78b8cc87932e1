"""Block-FP8 models of transformers, and the checkpoints that export_hf writes."""

import json
import sys
import warnings
from types import SimpleNamespace

import pytest
import reference
import torch
from torch import nn

import octile.torch as ot
from octile.torch.frozen import product

transformers = pytest.importorskip("transformers")


def small(name, **more):
    """Returns a configuration whose projections are multiples of 128: others transformers does not quantise."""
    sizes = {
        "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "vocab_size": 128, "head_dim": 64,
        "num_attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 256, "num_experts_per_tok": 2,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    } | more  # fmt: skip
    if name == "qwen3":
        return transformers.Qwen3MoeConfig(**sizes, num_experts=4)
    sizes["head_dim"] = 128  # of the rotary part
    return transformers.DeepseekV3Config(
        **sizes, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=128,
        kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=128, v_head_dim=64,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["qwen3", "deepseek"])
def checkpoint(request, tmp_path_factory):
    """A checkpoint with random weights, quantised and saved by transformers."""
    ot.use_in_transformers(host=True)
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(small(request.param), dtype=torch.bfloat16)
    model.save_pretrained(folder / "bf16")
    config = transformers.FineGrainedFP8Config(modules_to_not_convert=["lm_head", "gate"])
    fp8 = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "bf16", quantization_config=config, dtype=torch.bfloat16
    )
    fp8.save_pretrained(folder / "fp8")
    return folder / "fp8"


def loaded(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options)


def dequantised(model):
    """Returns the model with BF16 weights: codes times the scale of their block."""
    state = dict(model.state_dict())
    for name in [n for n, t in state.items() if t.dtype == torch.float8_e4m3fn]:
        scales = state.pop(name + "_scale_inv").repeat_interleave(128, -2).repeat_interleave(128, -1)
        rows, cols = state[name].shape[-2:]
        state[name] = (state[name].float() * scales[..., :rows, :cols]).bfloat16()
    plain = transformers.AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    plain.load_state_dict(state, strict=True)
    return plain.eval()


@pytest.mark.parametrize("experts", ["eager", "grouped_mm", "batched_mm"])
def test_logits_are_the_dequantised_models_within_the_activations_fp8_error(checkpoint, experts):
    tokens = torch.arange(3, 40)[None]
    model = loaded(checkpoint, experts_implementation=experts)
    projections = [n for n, p in model.named_parameters() if n.endswith("proj.weight") or n.endswith("_mqa.weight")]
    assert projections and all(model.get_parameter(n).dtype == torch.float8_e4m3fn for n in projections)
    plain = dequantised(model)
    with torch.no_grad():
        ours, theirs = model(tokens).logits.float(), plain(tokens).logits.float()
    # The median, because a token whose router is undecided may go to another expert.
    error = ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).median().item()
    assert 0.01 < error < 0.08, error
    out = model.generate(tokens[:, :8], max_new_tokens=4, do_sample=False)
    assert out.shape == (1, 12)


def test_what_octile_does_not_serve_stays_with_transformers():
    from octile.torch.huggingface import _batched_instead_of, _grouped_instead_of, _linear_instead_of

    asked = []
    linear = _linear_instead_of(lambda *arguments: asked.append(arguments))
    x, scales = torch.randn(3, 256), torch.ones(2, 2)
    weight = torch.randn(256, 256).to(torch.float8_e4m3fn)
    y = linear(x, weight, scales / 4, (128, 128))
    assert y.shape == (3, 256) and linear(x, weight, (scales / 4).to(torch.float8_e8m0fnu), (128, 128)).equal(y)
    assert not asked
    linear(x, weight, scales, (128, 128), activation_scale=torch.ones(()))
    linear(x, weight, torch.ones(4, 4), (64, 64))
    linear(x, weight, scales.bfloat16(), (128, 128))
    linear(x[:, :100], weight[:, :100], scales[:, :1], (128, 128))
    linear(x, weight, torch.ones(3), None)
    linear(x, weight, torch.ones(2, 2), None)
    linear(x, weight, torch.ones(()), None, activation_scale=torch.ones(2))
    assert len(asked) == 7
    grouped = _grouped_instead_of(lambda *arguments: asked.append(arguments))
    grouped(x, weight[None], torch.ones(1, 4, 4), torch.tensor([3]), None, (64, 64))
    assert len(asked) == 8
    batched = _batched_instead_of(lambda *arguments: asked.append(arguments), lambda *arguments: "grouped")
    experts = SimpleNamespace(
        has_gate=True, activation_scheme="dynamic", block_size=(128, 128), gate_up_proj=weight[None],
        down_proj=weight[None], gate_up_proj_scale_inv=scales[None], down_proj_scale_inv=scales[None],
    )  # fmt: skip
    assert batched(experts, x, None, None) == "grouped"
    experts.activation_scheme = "static"
    batched(experts, x, None, None)
    assert len(asked) == 9


def test_versions_whose_experts_call_the_kernel_itself():
    from octile.torch.huggingface import _kernel_instead_of

    loads = []
    kernel = _kernel_instead_of(lambda: loads.append(0) or SimpleNamespace(matmul=1, grouped_matmul=dict))()
    x, weight = torch.randn(3, 256), torch.randn(1, 256, 256).to(torch.float8_e4m3fn)
    more = {"offsets": torch.tensor([3]), "tokens_per_expert": None}
    y = kernel.grouped_matmul(x, weight, torch.ones(1, 2, 2), **more, block_size=(128, 128))
    assert y.equal(product(x, weight[0], torch.ones(2, 2))) and not loads
    assert kernel.matmul == 1 and len(loads) == 1
    with pytest.raises(TypeError):  # dict takes no three positions
        kernel.grouped_matmul(x, weight, torch.ones(1, 4, 4), **more, block_size=(64, 64))
    assert len(loads) == 2


def test_a_product_with_given_codes_against_fp64_of_the_dequantised_operands():
    x, bias = torch.randn(77, 272, dtype=torch.bfloat16), torch.randn(144)
    q = ot.quantize(torch.randn(144, 272), granularity="128x128", scales="f32")
    scales = q.scales[:, :3].contiguous()
    y = product(x, q.codes, scales, bias)
    exact = ot.quantize(x, scales="f32").dequantize().double() @ q.dequantize().double().t() + bias
    torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-3)
    at_one_byte = torch.cat([torch.zeros(1, dtype=torch.uint8), q.codes.view(torch.uint8).flatten()])[1:]
    moved = at_one_byte.view(torch.float8_e4m3fn).view(q.codes.shape)
    assert product(x, moved, scales, bias).equal(y)
    with pytest.raises(ValueError, match=r"w_scales is \[1, 3\]; allowed is contiguous, of 8 elements"):
        product(x, q.codes, scales[:1], bias)


def release_of(**parts):
    """Returns a module of FP8 layers as a release of transformers may have it."""

    class FP8Linear(nn.Linear):
        def forward(self, input):
            return "theirs"

    return SimpleNamespace(FP8Linear=FP8Linear, **parts)


def fp8_layer(kind, block_size=(128, 128), bias=True, **more):
    layer = kind(256, 256, bias=bias, dtype=torch.bfloat16)
    q = ot.quantize(layer.weight.detach(), granularity="128x128", scales="f32")
    layer.weight = nn.Parameter(q.codes, False)
    layer.weight_scale_inv = nn.Parameter(q.scales[:, :2].contiguous(), False)
    vars(layer).update(block_size=block_size, **more)
    return layer


def test_releases_in_which_layers_multiply_by_themselves():
    from octile.torch.huggingface import _serve

    class FP8Expert(nn.Module):
        block_size = (128, 128)

        def linear(self, input, weight, weight_scale_inv):
            return "theirs"

    theirs = release_of(FP8Expert=FP8Expert)
    _serve(theirs)
    _serve(theirs)
    layer, x = fp8_layer(theirs.FP8Linear), torch.randn(2, 3, 256, dtype=torch.bfloat16)
    scales, weight = layer.weight_scale_inv, layer.weight
    assert layer(x).equal(product(x, weight, scales, layer.bias))
    assert FP8Expert().linear(x[0], weight, scales).equal(product(x[0], weight, scales))
    assert fp8_layer(theirs.FP8Linear, (64, 64))(x) == "theirs"
    assert fp8_layer(theirs.FP8Linear, activation_scale=torch.ones(()))(x) == "theirs"
    assert FP8Expert().linear(x, weight, scales[:1]) == "theirs"


@pytest.mark.parametrize("more", [{"output_dtype": torch.bfloat16}, {"allow_deepgemm": False}, {}])
@pytest.mark.parametrize(
    "loader", ["load_finegrained_fp8_kernel", "_load_finegrained_fp8_kernel", "_get_triton_kernel"]
)
def test_releases_differ_in_names_and_in_arguments(loader, more):
    from octile.torch.huggingface import _serve

    asked = []
    experts = {"batched_mm": lambda *_: "theirs", "grouped_mm": lambda *_: "ours"}
    theirs = release_of(
        fp8_linear=lambda *given, **named: asked.append((len(given), named)), ALL_FP8_EXPERTS_FUNCTIONS=experts,
        **{loader: lambda: SimpleNamespace(grouped_matmul=None)},
    )  # fmt: skip
    forward = theirs.FP8Linear.forward
    _serve(theirs)
    _serve(theirs)
    x, weight = torch.randn(3, 256), torch.randn(256, 256).to(torch.float8_e4m3fn)
    y = theirs.fp8_linear(x, weight, torch.ones(2, 2), (128, 128), **more)
    assert y.shape == (3, 256) and not asked and theirs.FP8Linear.forward is forward
    theirs.fp8_linear(x, weight, torch.ones(4, 4), (64, 64), None, None, **more)
    assert asked == [(6, more)]
    assert callable(getattr(theirs, loader)().w8a8_fp8_matmul_grouped) and hasattr(experts["batched_mm"], "replaced")


@pytest.mark.parametrize("function", ["use_in_transformers", "block_fp8_state_dict"])
@pytest.mark.parametrize("lacks", ["core_model_loading", "integrations.finegrained_fp8.FP8Linear"])
def test_a_part_that_transformers_lacks_is_named(function, lacks, monkeypatch):
    model = llama()
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.6")
    if lacks == "core_model_loading":
        monkeypatch.setitem(sys.modules, "transformers.core_model_loading", None)
    else:
        from transformers.integrations import finegrained_fp8

        monkeypatch.delattr(finegrained_fp8, "FP8Linear")
    with pytest.raises(ImportError, match=rf"^octile: transformers 4\.57\.6 has no transformers\.{lacks}, which"):
        ot.use_in_transformers(host=True) if function == "use_in_transformers" else ot.block_fp8_state_dict(model)


def test_other_releases_say_nothing(monkeypatch):
    for version in ("5.0.0", "9.9.0.dev0"):
        monkeypatch.setattr(sys.modules["transformers"], "__version__", version)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ot.use_in_transformers(host=True)
            ot.block_fp8_state_dict(llama())


# ---- one scale a weight

E4M3 = torch.float8_e4m3fn


def per_tensor_linear(x, weight, scale, x_scale=None, bias=None):
    from octile.torch.huggingface import _linear_instead_of

    linear = _linear_instead_of(lambda *_: pytest.fail("transformers' kernel was asked"))
    return linear(x, weight, scale, None, bias, activation_scale=x_scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scales", [torch.tensor(0.02), torch.tensor([0.02]), torch.tensor([[0.02], [0.05]])])
@pytest.mark.parametrize("static", [True, False])
def test_one_scale_a_weight_against_fp64_of_the_dequantised_operands(static, scales, dtype):
    x, bias = torch.randn(2, 37, 272, dtype=dtype), torch.randn(144, dtype=dtype)
    x[0, 0] = 100.0  # saturates with the static scale
    weight, x_scale = (torch.randn(144, 272) / 0.02).to(E4M3), torch.tensor(0.01) if static else None
    y = per_tensor_linear(x, weight, scales, x_scale, bias)
    exact = weight.double() * scales.double().reshape(-1).repeat_interleave(144 // scales.numel())[:, None]
    rows = x.reshape(74, 272)
    if static:
        rows = (rows.float() / x_scale).clamp(-448, 448).to(E4M3).double() * x_scale.double()
        assert rows.abs().max() <= 4.48
    else:
        rows = ot.quantize(rows, granularity="row", scales="f32").dequantize().double()
    size = rows.abs() @ exact.abs().t() + bias.double().abs()
    assert y.dtype == dtype and y.shape == (2, 37, 144)
    reference.assert_close(y.reshape(74, 144), (rows @ exact.t() + bias.double(), size))


def per_tensor_checkpoint(folder, static, names=("weight_scale_inv", "activation_scale"), **quantization):
    """Writes a small model with one scale a weight, and returns the model with the weights that these are."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=384, num_hidden_layers=2, vocab_size=128, num_attention_heads=4
    )
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    plain.save_pretrained(folder)
    file = folder / "model.safetensors"
    state = load_file(file)
    for name in [name for name in state if "proj" in name]:
        q = ot.quantize(state[name], granularity="tensor", scales="f32")
        state[name] = q.codes
        state[name.replace("weight", names[0])] = q.scales.reshape(())
        if static:
            state[name.replace("weight", names[1])] = torch.tensor(0.02)
        plain.get_parameter(name).data = q.dequantize(torch.bfloat16)
    save_file(state, file, metadata={"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    scheme = "static" if static else "dynamic"
    text["quantization_config"] = {"quant_method": "fp8", "activation_scheme": scheme} | quantization
    (folder / "config.json").write_text(json.dumps(text))
    return plain


VLLM = "weight_scale", "input_scale"
LAYOUTS = {
    "static": (True, {"weight_block_size": None, "modules_to_not_convert": ["lm_head"]}),
    "dynamic": (False, {"weight_block_size": None, "modules_to_not_convert": ["lm_head"]}),
    "static of vLLM": (True, {"names": VLLM, "ignored_layers": ["lm_head"]}),
    "dynamic of vLLM": (False, {"names": VLLM, "weight_block_size": None, "ignored_layers": ["lm_head"]}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_models_with_one_scale_a_weight(tmp_path, layout):
    ot.use_in_transformers(host=True)
    static, options = LAYOUTS[layout]
    plain = per_tensor_checkpoint(tmp_path, static, **options)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not any(report.values()), report
    layer = model.model.layers[1].mlp.up_proj
    assert layer.weight.dtype == E4M3 and layer.weight_scale_inv.shape == () and layer.weight_scale_inv < 0.1
    assert (layer.activation_scale is not None) == static
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        ours, theirs = model(tokens).logits.float(), plain(tokens).logits.float()
    assert 0.005 < ((ours - theirs).norm() / theirs.norm()).item() < 0.08
    x = torch.randn(4, 256, dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.isfinite().all() and x.grad.any()


def test_checkpoints_of_modelopt_are_refused(tmp_path):
    ot.use_in_transformers(host=True)
    per_tensor_checkpoint(tmp_path, True, names=VLLM, quant_method="modelopt")
    with pytest.raises(ValueError, match="octile: quant_method is 'modelopt'; allowed are those that"):
        loaded(tmp_path)


# ---- export


def llama():
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=384, num_hidden_layers=2, vocab_size=128, num_attention_heads=4
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    ot.convert(model, ot.Recipe(scales="f32"), min_dims=128, fuse=False)
    return model


@pytest.mark.parametrize("shard_bytes", [2**30, 300_000])
def test_an_exported_checkpoint_loads_as_block_fp8(tmp_path, shard_bytes):
    ot.use_in_transformers(host=True)
    model = llama()
    ot.export_hf(model, tmp_path, shard_bytes)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    assert config["quantization_config"]["modules_to_not_convert"] == ["lm_head"]
    assert (len(list(tmp_path.glob("*.safetensors"))) == 1) == (shard_bytes == 2**30)
    again = loaded(tmp_path)
    name = "model.layers.1.mlp.down_proj"
    layer, source = again.get_submodule(name), model.get_submodule(name)
    assert layer.weight.dtype == torch.float8_e4m3fn and layer.weight_scale_inv.shape == (2, 3)
    q = ot.quantize(source.weight.detach(), granularity="128x128", scales="f32")
    assert layer.weight.view(torch.uint8).equal(q.codes.view(torch.uint8))
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert again(tokens).logits.equal(model(tokens).logits)


def test_export_of_a_plain_module_and_to_a_file(tmp_path):
    from safetensors.torch import load_file

    model = nn.Sequential(ot.Linear(64, 32), nn.Linear(32, 7))
    ot.export_hf(model, tmp_path / "new" / "folder")
    state = load_file(tmp_path / "new" / "folder" / "model.safetensors")
    assert set(state) == {"0.weight", "0.weight_scale_inv", "0.bias", "1.weight", "1.bias"}
    assert not (tmp_path / "new" / "folder" / "config.json").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="path is .*file'; allowed is a folder or a new name"):
        ot.export_hf(model, tmp_path / "file")


def test_warmup_counts_layers_and_checks_tokens():
    model = llama()
    assert ot.warmup(model, (1, 4096)) == 3  # attention, gate and up, down
    assert ot.warmup(model, (1, 1), training=False, dtype=torch.float32) == 3
    with pytest.raises(ValueError, match=r"tokens is \(5, 4\); allowed are \(lo, hi\)"):
        ot.warmup(model, (5, 4))
    with torch.device("meta"), pytest.raises(ValueError, match="model is 'on the meta device'"):
        ot.warmup(nn.Sequential(ot.Linear(64, 32)), (1, 1))
