"""RMS norms of converted models, computed by PyTorch's fused kernels."""

import copy
import io

import pytest
import torch
import torch._dynamo.testing
from reference import kept_bytes
from torch import nn

import octile.torch as ot
from octile.torch.norms import FusedNorm


class Norm(nn.Module):
    """As transformers writes it."""

    def __init__(self, size, eps=1e-5, offset=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon, self.offset = eps, offset

    def forward(self, x):
        values = x.float()
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() + self.offset).to(x.dtype) * values.to(x.dtype)


class Centred(Norm):
    def forward(self, x):
        return super().forward(x - x.mean(-1, keepdim=True))


class Scaled(Norm):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale


def model_of(norm):
    return nn.Sequential(norm, nn.Linear(64, 64, bias=False)).bfloat16()


def converted(norm, **options):
    model = model_of(norm)
    report = ot.convert(model, min_dims=16, **options)
    return model, report


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_are_found_by_what_they_compute(offset):
    plain = model_of(Norm(64, offset=offset))
    model = copy.deepcopy(plain)
    report = ot.convert(model, min_dims=16)
    assert report.norms == ["0"] and "1 RMS norm by PyTorch's fused kernel: 0" in str(report)
    assert (
        isinstance(model[0], FusedNorm)
        and isinstance(model[0], Norm)
        and model.state_dict().keys() == plain.state_dict().keys()
    )
    results = []
    for norm in (plain[0], model[0]):
        x = torch.randn(5, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = norm(x)
        y.backward(torch.ones_like(y))
        results.append((y, x.grad, norm.weight.grad))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, rtol=0.03, atol=0.03)


def test_other_modules_stay():
    own = Norm(64)
    own.forward = lambda x: x
    for norm in (Centred(64), own, nn.RMSNorm(64), nn.LayerNorm(64), Norm(64, eps=1)):
        model, report = converted(norm)
        assert report.norms == [] and not isinstance(model[0], FusedNorm)
    model, report = converted(Norm(64), fuse=False)
    assert report.norms == [] and type(model[0]) is Norm


def test_calls_that_the_kernel_does_not_serve():
    plain = Scaled(64)
    model = nn.Sequential(copy.deepcopy(plain), nn.Linear(64, 64))
    assert ot.convert(model, min_dims=16).norms == ["0"]
    norm, x = model[0], torch.randn(3, 64)
    assert norm(x, scale=2.0).equal(plain(x, scale=2.0))
    assert norm(x.bfloat16()).equal(plain(x.bfloat16()))  # another type than the weight's
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).equal(plain(x))
    assert torch.vmap(norm)(x).allclose(plain(x), rtol=1e-5)
    with pytest.raises(TypeError):
        norm()


def test_copies_pickles_and_compiled_models():
    model, _ = converted(Norm(64))
    twin = copy.deepcopy(model)
    assert isinstance(twin[0], FusedNorm)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    wanted = model(x)
    assert isinstance(loaded[0], FusedNorm)
    assert loaded(x).equal(wanted) and twin(x).equal(wanted)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert twin(x).count_nonzero() == 0 and model(x).equal(wanted)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), wanted, rtol=0.05, atol=0.05)
    assert ot.convert(model, min_dims=16).norms == []  # they are fused already


def test_norms_of_a_kind_compile_once():
    layers = nn.ModuleList(nn.Sequential(Norm(64), nn.Linear(64, 64, bias=False)) for _ in range(3)).bfloat16()
    assert len(ot.convert(layers, min_dims=16).norms) == 3
    counter = torch._dynamo.testing.CompileCounter()
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    torch._dynamo.reset()
    for layer in layers:
        torch.compile(layer, fullgraph=True, backend=counter)(x)
    assert counter.frame_count == 1


def test_backward_keeps_x_and_no_float32_of_it():
    plain = model_of(Norm(64))[0]
    model, _ = converted(Norm(64))
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    size = x.numel() * x.element_size()
    assert kept_bytes(plain, x) > 3 * size
    assert kept_bytes(model[0], x) < 1.5 * size


def test_one_of_both_gradients():
    for which in ("x", "weight"):
        norm = converted(Norm(64))[0][0]
        norm.weight.requires_grad_(which == "weight")
        x = torch.randn(3, 4, 64, dtype=torch.bfloat16).requires_grad_(which == "x")
        norm(x).sum().backward()
        assert (x.grad is None) == (which == "weight") and (norm.weight.grad is None) == (which == "x")
