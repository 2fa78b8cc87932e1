"""PyTorch's tools around converted models: counters of operations, tracers, swaps of parameters, fast paths."""

import io

import pytest
import torch
from torch import nn
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import octile.torch as ot
from octile.torch.frozen import product

ENDS = torch.tensor([2, 5])


def flops(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("device", ("cpu", "meta"))
@pytest.mark.parametrize("frozen", ("", "x", "weight"))
@pytest.mark.parametrize("main_grad", (False, True))
def test_layers_count_the_operations_of_nn_linear(device, frozen, main_grad):
    counts = []
    for kind in (ot.Linear, nn.Linear):
        model = kind(64, 32, device=device)
        model.weight.requires_grad_(frozen != "weight")
        x = torch.randn(2, 5, 64, device=device, requires_grad=frozen != "x")
        if main_grad and kind is ot.Linear:
            model.weight.main_grad = torch.zeros(32, 64, device=device)
        with torch.no_grad():
            forward = flops(lambda: model(x))
        counts.append((forward, flops(lambda: model(x).sum().backward())))
    assert counts[0] == counts[1] and counts[0][0] == 2 * 10 * 64 * 32


@pytest.mark.parametrize("fp8", (True, False))
@pytest.mark.parametrize("main_grad", (False, True))
def test_experts_count_a_product_of_all_tokens_for_each_pass(fp8, main_grad):
    model, x = ot.Experts(2, 64, 32), torch.randn(5, 64, requires_grad=True)
    ot.set_fp8(model, fp8)
    if main_grad and fp8:
        model.weight.main_grad = torch.zeros(2, 32, 64)
    once = 2 * 5 * 64 * 32
    with torch.no_grad():
        assert flops(lambda: model(x, ENDS)) == once
    assert flops(lambda: model(x, ENDS).sum().backward()) == 3 * once


def test_products_of_matrices_count():
    a, b = ot.quantize(torch.randn(5, 64)), ot.quantize(torch.randn(32, 64), granularity="128x128")
    assert flops(lambda: ot.gemm(a, b)) == 2 * 5 * 64 * 32
    weight, scales = torch.ones(32, 64).to(torch.float8_e4m3fn), torch.ones(1, 1)
    assert flops(lambda: product(torch.randn(5, 64), weight, scales)) == 2 * 5 * 64 * 32


def test_traces_of_torch_jit():
    model, x = nn.Sequential(ot.Linear(64, 32), nn.ReLU(), ot.Linear(32, 16)), torch.randn(5, 64)
    with pytest.raises(NotImplementedError, match=r"torch.jit.trace records an FP8 layer .* under torch.no_grad\(\)"):
        torch.jit.trace(model, x)
    with torch.no_grad():
        traced, file = torch.jit.trace(model, x), io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        loaded = torch.jit.load(file)
        for tokens in (5, 9):
            x = torch.randn(tokens, 64)
            assert traced(x).equal(model(x)) and loaded(x).equal(model(x))
    with pytest.raises(NotImplementedError, match="torch.jit.trace records an FP8 layer"):
        torch.jit.trace(ot.Experts(2, 64, 32), (x, ENDS))


def test_other_tracers_take_layers():
    model, x = ot.Linear(64, 32), torch.randn(5, 64)
    with torch.no_grad():
        assert functionalize(model)(x).equal(model(x))
        traced = make_fx(model)(x)
        assert "octile.linear_output" in traced.code and traced(x).equal(model(x))
    for strict in (True, False):
        assert torch.export.export(model, (x,), strict=strict).module()(x).equal(model(x))


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("assign", (False, True))
@pytest.mark.parametrize("kind", ("linear", "experts"))
def test_parameters_that_pytorch_swaps_after_a_step(kind, assign, swapping):
    model = ot.Linear(64, 32) if kind == "linear" else ot.Experts(2, 64, 32)
    inputs = (torch.randn(5, 64),) if kind == "linear" else (torch.randn(5, 64), ENDS)
    model(*inputs).sum().backward()
    model.zero_grad()
    weight = model.weight
    model.to(torch.bfloat16)
    assert model.weight is weight and weight.dtype == torch.bfloat16
    quantizations = torch.ops.octile.weight_quantizations
    model.load_state_dict({name: torch.randn_like(p).float() for name, p in model.state_dict().items()}, assign=assign)
    before, y = quantizations(), model(*inputs).detach()
    assert model(*inputs).equal(y) and quantizations() == before + 1
    fresh = type(model)(*((64, 32) if kind == "linear" else (2, 64, 32)), dtype=model.weight.dtype)
    fresh.load_state_dict(model.state_dict())
    assert y.equal(fresh(*inputs))


def test_attention_of_pytorch_keeps_its_output_layer():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4, batch_first=True)}).eval()
    assert ot.convert(model, min_dims=16).skipped == {
        "attention.out_proj": "is a NonDynamicallyQuantizableLinear, whose forward may differ"
    }
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    report = ot.convert(layer, min_dims=16)
    assert set(report.converted) == {"linear1", "linear2"} and set(report.skipped) == {"self_attn.out_proj"}


@pytest.mark.parametrize("change", (lambda m: m, lambda m: m.half().float(), lambda m: torch.nn.Sequential(m)))
def test_converted_encoders_multiply_in_fp8_without_gradients(change):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
    ot.convert(encoder, min_dims=16)
    model = change(encoder).eval()
    for context in (torch.no_grad, torch.inference_mode):
        with context(), FlopCounterMode(display=False) as counter:
            model(torch.randn(2, 8, 64))
        ours = counter.get_flop_counts()["Global"][torch.ops.octile.linear_output]
        assert ours == 2 * 2 * (2 * 16 * 64 * 128)  # two layers, each with two FP8 products
