"""Tensors anywhere in a flat buffer, as FSDP1, DeepSpeed and files keep them: at any multiple of their element's size,
with the bits of tensors that were allocated one by one."""

import pytest
import torch

import octile.torch as ot
from octile.torch.frozen import product

FLOATS = (torch.float32, torch.bfloat16)
OFFSETS = torch.tensor([0, 40, 40, 77], dtype=torch.int32)


def moved(x, elements=1):
    """Returns x in a flat buffer, ``elements`` behind its begin."""
    bytes_ = x.element_size()
    flat = torch.zeros((x.numel() + 16) * bytes_, dtype=torch.uint8)
    view = flat[elements * bytes_ :][: x.numel() * bytes_].view(x.dtype).view(x.shape)
    with torch.no_grad():
        view.view(torch.uint8).copy_(x.detach().view(torch.uint8))
    assert (view.data_ptr() - flat.data_ptr()) == elements * bytes_ and view.data_ptr() % 16
    return view


def moved_or_not(names, name, x):
    return moved(x) if name in names else x.clone()


def layer_results(dtype, main_dtype, names):
    """Returns y, dx, db and what dW was added to, of a layer of which the tensors of ``names`` are moved."""
    torch.manual_seed(1)
    x, dy = torch.randn(77, 128, dtype=dtype), torch.randn(77, 64, dtype=dtype)
    weight, bias, main_grad = torch.randn(64, 128, dtype=dtype), torch.randn(64, dtype=dtype), torch.randn(64, 128)
    layer = ot.Linear(128, 64, dtype=dtype)
    layer.weight.data = moved_or_not(names, "weight", weight)
    layer.bias.data = moved_or_not(names, "bias", bias)
    layer.weight.main_grad = moved_or_not(names, "main_grad", main_grad.to(main_dtype))
    x = moved_or_not(names, "x", x).requires_grad_()
    y = layer(x)
    y.backward(moved_or_not(names, "dy", dy))
    return y, x.grad, layer.bias.grad, layer.weight.main_grad


@pytest.mark.parametrize("main_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_layer_in_flat_buffers_has_the_bits_of_another(dtype, main_dtype):
    expected = layer_results(dtype, main_dtype, ())
    for names in (("x",), ("dy",), ("weight",), ("bias",), ("main_grad",), ("x", "dy", "weight", "bias", "main_grad")):
        for ours, theirs in zip(layer_results(dtype, main_dtype, names), expected, strict=True):
            assert ours.equal(theirs), names


def test_what_lies_beside_main_grad_is_not_written():
    flat = torch.full((64 * 128 + 2,), 7.0)
    layer = ot.Linear(128, 64, bias=False)
    layer.weight.main_grad = flat[1:-1].view(64, 128)
    layer(torch.randn(5, 128)).sum().backward()
    assert flat[0] == flat[-1] == 7.0 and not flat[1:-1].eq(7.0).any()


@pytest.mark.parametrize("main_dtype", FLOATS)
def test_experts_in_flat_buffers_have_the_bits_of_others(main_dtype):
    def results(names):
        torch.manual_seed(1)
        x = moved_or_not(names, "x", torch.randn(77, 128)).requires_grad_()
        weight = moved_or_not(names, "weight", torch.randn(3, 64, 128)).requires_grad_()
        weight.main_grad = moved_or_not(names, "main_grad", torch.randn(3, 64, 128).to(main_dtype))
        y = ot.experts(x, weight, moved_or_not(names, "offsets", OFFSETS))
        y.backward(moved_or_not(names, "dy", torch.randn(77, 64)))
        return y, x.grad, weight.main_grad

    for names in (("main_grad",), ("offsets",), ("x", "weight", "offsets", "main_grad", "dy")):
        for ours, theirs in zip(results(names), results(()), strict=True):
            assert ours.equal(theirs), names


def test_copies_that_hooks_unpack_into_a_flat_buffer_serve_backward():
    def gradient(pack):
        torch.manual_seed(1)
        layer, x = ot.Linear(128, 64), torch.randn(5, 128)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            y = layer(x)
        y.square().sum().backward()
        return layer.weight.grad

    assert gradient(lambda x: moved(x) if x.dtype != torch.uint8 else x).equal(gradient(lambda x: x))


def test_operands_of_functions_may_lie_anywhere():
    x, w, bias = torch.randn(48, 256), torch.randn(32, 256), torch.randn(32)
    for granularity in ("1x128", "row", "tensor"):
        a = ot.quantize(x, granularity=granularity)
        b = ot.quantize(w, granularity={"1x128": "128x128"}.get(granularity, granularity))
        plain = ot.gemm(a, b, torch.float32, bias)
        there = [q._replace(codes=moved(q.codes), scales=moved(q.scales)) for q in (a, b)]
        assert ot.gemm(*there, torch.float32, moved(bias)).equal(plain)
        assert ot.dequantize(there[0]).equal(ot.dequantize(a))
    q, there = ot.quantize(moved(x), granularity="128x128"), ot.quantize(x, granularity="128x128")
    assert q.codes.view(torch.uint8).equal(there.codes.view(torch.uint8)) and q.scales.equal(there.scales)
    t, at = ot.transpose(q), ot.transpose(q._replace(codes=moved(q.codes), scales=moved(q.scales)))
    assert t.codes.view(torch.uint8).equal(at.codes.view(torch.uint8)) and t.scales.equal(at.scales)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("elements", [1, 3])
def test_out_of_gemm_may_lie_anywhere(dtype, elements):
    a, b = ot.quantize(torch.randn(48, 256)), ot.quantize(torch.randn(32, 256), granularity="128x128")
    out = torch.randn(48, 32).to(dtype)
    there = moved(out, elements)
    assert ot.gemm(a, b, out=there) is there
    assert there.equal(ot.gemm(a, b, out=out))


def test_rows_of_operators_may_begin_anywhere():
    a, b = ot.quantize(torch.randn(48, 256)), ot.quantize(torch.randn(32, 256), granularity="128x128")
    wide = torch.zeros(48, 256 + 3, dtype=torch.uint8)
    wide[:, 1:257] = a.codes.view(torch.uint8)
    codes, d = wide.view(a.codes.dtype)[:, 1:257], torch.zeros(48, 33)[:, 1:]
    torch.ops.octile.gemm_out(
        codes, a.scales, a.type.text, b.codes, b.scales, b.type.text, None, d, 256, "m", False, "128"
    )
    assert d.equal(ot.gemm(a, b, torch.float32))


def test_biases_of_other_strides_are_biases():
    x, weight = torch.randn(5, 128), torch.randn(64, 128)
    a, b = ot.quantize(x), ot.quantize(weight, granularity="128x128")
    for bias in (torch.randn(128)[::2], torch.randn(1).expand(64)):
        assert ot.linear(x, weight, bias).equal(ot.linear(x, weight, bias.clone().contiguous()))
        assert ot.gemm(a, b, bias=bias).equal(ot.gemm(a, b, bias=bias.contiguous()))


def test_block_fp8_weights_and_biases_may_lie_anywhere():
    x, bias = torch.randn(7, 256), torch.randn(32)
    q = ot.quantize(torch.randn(32, 256), granularity="128x128", scales="f32")
    scales = q.scales[:, :2].contiguous()
    y = product(x, q.codes, scales, bias)
    there = moved(x), moved(q.codes), moved(scales), moved(bias)
    assert product(*there).equal(y)
