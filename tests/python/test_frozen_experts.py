"""Experts whose weights are FP8 in memory and are not trained: those of transformers' mixtures in both layouts, and
``Experts``."""

import copy
import io

import pytest
import torch
from safetensors import safe_open
from test_mixtures import E, Block, H, I
from torch import nn

import octile.torch as ot
from octile.torch.frozen import FrozenWeight

transformers = pytest.importorskip("transformers")
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts  # noqa: E402

KINDS = pytest.mark.parametrize("kind", (Qwen3MoeExperts, GptOssExperts))


def frozen(kind=Qwen3MoeExperts, dtype=torch.bfloat16):
    """Returns a block whose experts are frozen, and the one that it was, with the values that the codes have."""
    torch.manual_seed(0)
    plain = Block(kind, dtype)
    plain.experts.requires_grad_(False)
    model = copy.deepcopy(plain)
    report = ot.freeze_to_fp8(model, filter=lambda name, _: name == "experts")
    assert list(report.converted) == report.experts == ["experts"]
    for name, parameter in plain.experts.named_parameters():
        if parameter.dim() == 3:
            parameter.data = getattr(model.experts, name).dequantize()
    return model, plain


def relative(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


@KINDS
def test_results_and_input_gradients_are_those_of_the_codes_values(kind):
    model, plain = frozen(kind)
    x = torch.randn(50, H, dtype=torch.bfloat16)
    results = []
    for block in (model, plain):
        given = x.clone().requires_grad_()
        y = block(given)
        y.square().sum().backward()
        results.append((y.detach(), given.grad, block.router.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        assert relative(ours, theirs) < 0.08
    assert all(p.grad is None and not p.requires_grad for p in model.experts.parameters())
    ot.convert(plain, "blockwise:f32", min_dims=16)
    assert relative(model(x), plain(x)) < 0.01  # whose weights are quantised again


@KINDS
def test_a_weight_takes_a_byte_an_element_and_nothing_beside(kind):
    model, plain = frozen(kind)
    for name, weight in model.experts.named_parameters():
        if weight.dim() == 3:
            assert isinstance(weight, FrozenWeight) and weight.codes.dtype == torch.float8_e4m3fn
            assert weight.shape == plain.experts.get_parameter(name).shape and weight.dtype == torch.bfloat16
            assert weight.scales.shape == (E, 1, 1)
    model(torch.randn(50, H, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert not [t for m in model.experts.modules() for t in vars(m).values() if isinstance(t, torch.Tensor)]


def test_bits_of_a_product_are_those_of_a_weight_with_these_codes():
    torch.manual_seed(0)
    layer = ot.Experts(3, 256, 144, dtype=torch.bfloat16, recipe="blockwise:f32")
    x, ends = torch.randn(70, 256, dtype=torch.bfloat16, requires_grad=True), torch.tensor([20, 20, 64])
    y = layer(x, ends)
    y[:64].sum().backward()
    wanted, gradient, x.grad = y.detach(), x.grad, None
    model = nn.ModuleList([layer])
    assert ot.freeze_to_fp8(model).experts == ["0"]
    y = layer(x, ends)
    y[:64].sum().backward()
    assert y[:64].equal(wanted[:64]) and x.grad[:64].equal(gradient[:64]) and layer.recipe.scales == "f32"


@KINDS
def test_compiled_without_a_break_it_is_the_same(kind):
    model, _ = frozen(kind)
    x = torch.randn(50, H, dtype=torch.bfloat16, requires_grad=True)
    y = model(x)
    y.sum().backward()
    gradient, x.grad = x.grad, None
    compiled = torch.compile(model, fullgraph=True)(x)
    compiled.sum().backward()
    assert relative(compiled, y) < 0.03 and relative(x.grad, gradient) < 0.03  # a compiler rounds elsewhere


@KINDS
def test_state_has_the_names_of_checkpoints_and_round_trips(kind):
    model, plain = frozen(kind)
    state = model.experts.state_dict()
    assert state["down_proj"].dtype == torch.float8_e4m3fn and state["down_proj_scale_inv"].shape == (E, 1, 1)
    other = Block(kind)
    ot.freeze_to_fp8(other, filter=lambda name, _: name == "experts")
    other.load_state_dict(model.state_dict())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    x = torch.randn(50, H, dtype=torch.bfloat16)
    for copied in (other, copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert copied(x).equal(model(x)) and isinstance(copied.experts.down_proj, FrozenWeight)
    short = {key: value for key, value in model.state_dict().items() if key != "experts.down_proj_scale_inv"}
    assert model.load_state_dict(short, strict=False).missing_keys == ["experts.down_proj_scale_inv"]
    with pytest.raises(RuntimeError, match=r"state_dict\['experts.down_proj'\].dtype is torch.bfloat16; allowed is"):
        model.load_state_dict(plain.state_dict(), strict=False)
    wrong = model.state_dict() | {"experts.down_proj": state["down_proj"][:1]}
    with pytest.raises(RuntimeError, match=r"size mismatch for experts.down_proj: \(1, .* in the checkpoint"):
        model.load_state_dict(wrong)


@KINDS
def test_thawed_they_are_what_they_were(kind):
    model, plain = frozen(kind)
    before = set(vars(plain.experts))
    assert ot.freeze_to_fp8(model).skipped["experts"] == "is frozen in FP8 already"
    assert "experts" in ot.unconvert(model).skipped
    assert ot.thaw_from_fp8(model) == 1 and ot.thaw_from_fp8(model) == 0
    assert type(model.experts) is kind and set(vars(model.experts)) == before
    x = torch.randn(50, H, dtype=torch.bfloat16)
    assert model.experts.down_proj.equal(plain.experts.down_proj)
    assert relative(model(x), plain(x)) < 0.02


def test_experts_of_convert_and_of_octile_are_frozen_and_thawed():
    model = Block()
    ot.convert(model, "blockwise:f32", min_dims=16, filter=lambda name, _: name == "experts")
    assert "experts" in ot.freeze_to_fp8(model).converted
    own = nn.ModuleList([ot.Experts(2, 64, 32)])
    assert ot.freeze_to_fp8(own).converted == {"0": "2 experts of [32, 64]"}
    with pytest.raises(NotImplementedError, match="thaw_from_fp8"):
        own[0].weight.requires_grad_()
    with pytest.raises(NotImplementedError, match="a frozen weight, which is FP8 codes"):
        own[0].weight.zero_()
    values = own[0].weight.dequantize()
    assert ot.thaw_from_fp8(own) == 1 and own[0].weight.equal(values) and type(own[0].weight) is nn.Parameter
    kept = nn.ModuleList([ot.Experts(2, 64, 32)])
    assert ot.freeze_to_fp8(kept, filter=lambda *_: False).skipped == {"0": "the filter leaves it"}


def test_casts_and_moves_keep_the_codes():
    model, _ = frozen()
    codes = model.experts.down_proj.codes.view(torch.uint8)
    model.float()
    assert model.experts.down_proj.codes.view(torch.uint8).equal(codes) and model.experts.down_proj.dtype == torch.float32
    assert model.to("meta").experts.down_proj.is_meta


def mixture_of(width):
    config = transformers.Qwen3MoeConfig(
        vocab_size=96, hidden_size=width, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, moe_intermediate_size=width, num_experts=E, num_experts_per_tok=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    report = ot.freeze_to_fp8(model)
    assert len(report.experts) == 2 and "and the experts of 2 mixtures to frozen FP8" in str(report)
    return model


def test_what_is_below_a_frozen_mixture_trains():
    model = mixture_of(64)
    ids = torch.randint(0, 96, (2, 16), generator=torch.Generator().manual_seed(0))
    embedding = model.get_input_embeddings().weight
    optimizer, losses = torch.optim.SGD([embedding], lr=1.0), []
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]


def test_a_frozen_mixture_is_exported_as_its_codes(tmp_path):
    model = mixture_of(128)
    ot.export_hf(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        for part, rows in (("gate", 0), ("up", 1)):
            name = f"model.layers.1.mlp.experts.2.{part}_proj.weight"
            whole = model.model.layers[1].mlp.experts.gate_up_proj
            codes = whole.codes.view(torch.uint8)[2, 128 * rows : 128 * rows + 128]
            assert file.get_tensor(name).view(torch.uint8).equal(codes)
            assert file.get_tensor(name + "_scale_inv").equal(whole.scales[2, rows : rows + 1])
    with pytest.raises(ValueError, match="in FP8'; allowed are weights whose blocks stay whole on disk"):
        ot.export_hf(mixture_of(64), tmp_path / "small")
