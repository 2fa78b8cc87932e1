"""RMS norms and layer norms of converted models, computed by PyTorch's fused kernels."""

import copy
import functools
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
    """A layer norm without a bias, as transformers writes Cohere's."""

    def forward(self, x):
        values = x.float()
        values = values - values.mean(-1, keepdim=True)
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * values).to(x.dtype)


class Subtracted(Norm):
    """Its epsilon counts otherwise than in a layer norm."""

    def forward(self, x):
        return super().forward(x) - x.mean(-1, keepdim=True)


def layer_norm(size=64, bias=True):
    norm = nn.LayerNorm(size, bias=bias)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


NORMS = {
    "rms": lambda: Norm(64),
    "offset": lambda: Norm(64, offset=1.0),
    "layer": layer_norm,
    "layer without bias": lambda: layer_norm(bias=False),
    "centred": lambda: Centred(64),
}
KEEPS_FLOAT = "rms", "offset", "centred"  # norms whose input may change after them
any_norm = pytest.mark.parametrize("norm", NORMS)


class Scaled(Norm):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale


def model_of(norm):
    return nn.Sequential(norm, nn.Linear(64, 64, bias=False)).bfloat16()


def converted(norm, **options):
    model = model_of(norm)
    report = ot.convert(model, min_dims=16, **options)
    return model, report


@any_norm
def test_norms_are_found_by_what_they_compute(norm):
    plain = model_of(NORMS[norm]())
    model = copy.deepcopy(plain)
    report = ot.convert(model, min_dims=16)
    kind = "RMS norm" if norm in ("rms", "offset") else "layer norm"
    assert report.norms == ["0"] and f"  1 {kind} by PyTorch's fused kernel: 0" in str(report)
    assert (
        isinstance(model[0], FusedNorm)
        and isinstance(model[0], type(plain[0]))
        and model.state_dict().keys() == plain.state_dict().keys()
    )
    results = []
    for norm in (plain[0], model[0]):
        x = torch.randn(5, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = norm(x)
        y.backward(torch.ones_like(y))
        results.append((y, x.grad, *(p.grad for p in norm.parameters())))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, rtol=0.03, atol=0.03)


class Other(Norm):
    """Computes something else in some calls."""

    def __init__(self, change):
        super().__init__(64)
        self.change = change

    def forward(self, x):
        return self.change(self, x, super().forward)


def first_dimension(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.variance_epsilon)


def all_but_the_batch(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).flatten(1).mean(1).view(-1, *[1] * (x.dim() - 1)) + 1e-5)


def without_the_gradient_of_rms(self, x):
    return self.weight * x * torch.rsqrt(x.detach().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


OTHERS = {
    "a norm of dimension 1": lambda self, x, norm: first_dimension(self, x),
    "a norm of a sample": lambda self, x, norm: all_but_the_batch(self, x),
    "another gradient": lambda self, x, norm: without_the_gradient_of_rms(self, x),
    "a result in float32": lambda self, x, norm: norm(x).float(),
    "another mode": lambda self, x, norm: norm(x) if self.training else norm(x + 1),
    "a type of its own": lambda self, x, norm: norm(x) if x.dtype == torch.float32 else norm(x) * 2,
    "a shape of its own": lambda self, x, norm: norm(x) if x.dim() == 2 else norm(x) * 2,
    "one that changes its input": lambda self, x, norm: norm(x.detach().add_(1) - 1),
    "one that counts": lambda self, x, norm: setattr(self, "calls", 1) or norm(x),
    "a view": lambda self, x, norm: norm(x).transpose(0, 1),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("training", [True, False])
def test_what_is_no_such_norm_stays(name, training):
    plain = Other(OTHERS[name]).bfloat16().train(training)
    model = nn.ModuleList([copy.deepcopy(plain), nn.Linear(64, 64).bfloat16()])
    assert ot.convert(model, min_dims=16).norms == [] and type(model[0]) is Other
    x = torch.randn(2, 3, 64).bfloat16()
    for mode in (True, False):
        assert model[0].train(mode)(x.clone()).equal(plain.train(mode)(x.clone()))


def test_other_modules_stay():
    own = Norm(64)
    own.forward = lambda x: x
    without = nn.LayerNorm(64, elementwise_affine=False)
    for norm in (Subtracted(64), Scaled(64), own, nn.RMSNorm(64), nn.GroupNorm(1, 64), without, Norm(64, eps=1)):
        model, report = converted(norm)
        assert report.norms == [] and not isinstance(model[0], FusedNorm)
    model, report = converted(Norm(64), fuse=False)
    assert report.norms == [] and type(model[0]) is Norm


@pytest.mark.parametrize("size", [16, 320])
def test_norms_that_know_their_size(size):
    class Sized(Norm):
        def forward(self, x):
            return super().forward(x.view(*x.shape[:-1], size))

    class Partial(Norm):
        def forward(self, x):
            y = super().forward(x)
            return torch.cat([y[..., :100], y[..., 100:] * 2], -1)

    for kind, found in ((Sized, True), (Partial, size < 100)):
        model = nn.ModuleList([kind(size), nn.Linear(64, 64)]).bfloat16()
        assert bool(ot.convert(model, min_dims=16).norms) == found


def test_calls_that_the_kernel_does_not_serve():
    plain = Norm(64)
    model = nn.Sequential(copy.deepcopy(plain), nn.Linear(64, 64))
    assert ot.convert(model, min_dims=16).norms == ["0"]
    norm, x = model[0], torch.randn(3, 64)
    assert norm(x=x).equal(plain(x))
    assert norm(x.bfloat16()).equal(plain(x.bfloat16()))  # another type than the weight's
    assert norm(x[0]).equal(plain(x[0])) and norm(x.view(1, 1, 1, 3, 64)).equal(plain(x.view(1, 1, 1, 3, 64)))
    assert norm(x[:, :1]).equal(plain(x[:, :1]))  # whose one column the weight broadcasts
    assert norm(x.double()).equal(plain(x.double())) and norm.double()(x.double()).equal(plain.double()(x.double()))
    norm.float(), plain.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).equal(plain(x))
    assert torch.vmap(norm)(x).allclose(plain(x), rtol=1e-5)
    with pytest.raises(TypeError):
        norm()


def test_layer_norms_of_two_dimensions_stay():
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm([3, 64]))
    assert ot.convert(model, min_dims=16).norms == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_layer_norms(dtype, bias):
    torch.manual_seed(0)
    plain = layer_norm(320, bias).to(dtype)
    exact, model = copy.deepcopy(plain).double(), nn.Sequential(copy.deepcopy(plain), nn.Linear(320, 64).to(dtype))
    ot.convert(model, min_dims=16)
    assert isinstance(model[0], FusedNorm)
    x = torch.randn(3, 7, 320).transpose(0, 1).add(5).to(dtype)  # not contiguous, and with a mean
    dy, found = torch.randn(7, 3, 320).to(dtype), []
    for norm in (exact, plain, model[0]):
        given = x.to(norm.weight.dtype).requires_grad_()
        y = norm(given)
        y.backward(dy.to(y.dtype))
        found.append([y, given.grad, *(p.grad for p in norm.parameters())])
    for wanted, a, b in zip(*found, strict=True):
        assert b.dtype == dtype and b.shape == wanted.shape
        of_plain, of_fused = ((t.double() - wanted).norm() / wanted.norm() for t in (a, b))
        assert of_fused < 1.1 * of_plain + 1e-6


@any_norm
def test_copies_pickles_and_compiled_models(norm):
    model, _ = converted(NORMS[norm]())
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
    assert not twin(x).equal(wanted) and model(x).equal(wanted)
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


VALUES = [0.0035, -0.0015, 0.0075]


@pytest.mark.parametrize("compiled", [False, True])
def test_one_is_added_to_a_weight_in_float32(compiled):
    class Gemma(Norm):
        """As transformers writes Gemma's."""

        def forward(self, x):
            values = x.float()
            values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
            return (values * (1.0 + self.weight.float())).type_as(x)

    torch.manual_seed(0)
    model, _ = converted(Gemma(64))
    norm, x = model[0], torch.randn(50, 64).bfloat16()
    assert isinstance(norm, FusedNorm)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(VALUES).repeat(22)[:64])
    results = []
    torch._dynamo.reset()
    for run in (torch.compile(norm, backend="aot_eager") if compiled else norm, functools.partial(Gemma.forward, norm)):
        norm.weight.grad, given = None, x.clone().requires_grad_()
        y = run(given)
        y.backward(torch.ones_like(y))
        results.append((y, given.grad, norm.weight.grad))
    for a, b in zip(*results, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b.double()).norm() < 1e-3 * b.double().norm()
    with torch.no_grad():
        assert norm(x).equal(results[0][0]) or compiled


@pytest.mark.parametrize("size", [144, 320, 1024])
def test_layer_norms_of_many_sizes_are_found_in_all_types(size):
    for bias in (False, True):
        model = nn.Sequential(nn.LayerNorm(size, bias=bias), nn.Linear(size, 64))
        ot.convert(model, min_dims=16)
        assert set(model[0]._fused.types) == {torch.float32, torch.bfloat16, torch.float16}


@any_norm
@pytest.mark.parametrize("change, compiled", [("result", False), ("input", False), ("both", False), ("both", True)])
def test_residuals_that_are_added_in_place(change, compiled, norm):
    torch.manual_seed(0)
    make = NORMS[norm]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.layer = make(), nn.Linear(64, 64, bias=False)

        def forward(self, x):
            x = x * 1.0
            y = self.norm(x)
            if change != "input":
                y += x
            z = self.layer(y)
            if change != "result":
                x += z
            return x + z

    plain = Block().bfloat16()
    fused, wide = copy.deepcopy(plain), copy.deepcopy(plain).double()
    for block, fuse in ((plain, False), (fused, True)):
        ot.convert(block, min_dims=16, preset="all-linear", fuse=fuse)
    assert isinstance(fused.norm, FusedNorm)
    if change != "result" and norm not in KEEPS_FLOAT:
        for block in () if compiled else (plain, fused):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                block(torch.randn(40, 64).bfloat16().requires_grad_()).sum().backward()
        return
    found = []
    for block in (wide, plain, fused):
        x = torch.randn(40, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
        x = x.to(block.layer.weight.dtype).requires_grad_()
        torch._dynamo.reset()
        run = torch.compile(block, fullgraph=True, backend="aot_eager") if compiled and block is fused else block
        run(x).square().sum().backward()
        found.append([x.grad, *(p.grad for p in block.parameters())])
    for exact, a, b in zip(*found, strict=True):
        of_plain, of_fused = ((grad.double() - exact).norm() / exact.norm() for grad in (a, b))
        assert of_fused < 1.1 * of_plain + 1e-3


def test_gradients_of_the_second_order():
    def second(norm, x):
        x = x.clone().requires_grad_()
        dx, *dws = torch.autograd.grad(norm(x).square().sum(), (x, *norm.parameters()), create_graph=True)
        return torch.autograd.grad(dx.square().sum() + sum(dw.sum() for dw in dws), (x, *norm.parameters()))

    for make in NORMS.values():
        plain = make()
        model = nn.Sequential(copy.deepcopy(plain), nn.Linear(64, 64))
        ot.convert(model, min_dims=16)
        x = torch.randn(5, 64)
        assert isinstance(model[0], FusedNorm)
        for a, b in zip(second(model[0], x), second(plain, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        ot.set_fp8(model, False)
        assert second(model[0], x)[0].equal(second(plain, x)[0])


@pytest.mark.parametrize("by", ["set_fp8", "schedule"])
def test_without_fp8_a_model_has_the_bits_that_it_had(by):
    torch.manual_seed(0)
    norms = [make() for make in NORMS.values()]
    plain = nn.Sequential(*norms[:2], nn.Linear(64, 64), *norms[2:], nn.Linear(64, 64)).bfloat16()
    model = copy.deepcopy(plain)
    report = ot.convert(model, min_dims=16, preset="all-linear")
    assert report.norms == ["0", "1", "3", "4", "5"]
    schedule = ot.Schedule(model, begin=1)

    def switch(enabled):
        if by == "set_fp8":
            assert ot.set_fp8(model, enabled) == 2
        else:
            schedule.step(int(enabled))

    def run(model):
        model.zero_grad()
        x = torch.randn(40, 64, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
        y = model(x)
        y.float().square().sum().backward()
        return [y, x.grad, *(p.grad for p in model.parameters())]

    fp8 = run(model)
    switch(False)
    for a, b in zip(run(model), run(plain), strict=True):
        assert a.equal(b)
    twin = copy.deepcopy(model)
    assert twin(x := torch.randn(40, 64).bfloat16()).equal(plain(x))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert compiled(x).equal(plain(x))
    switch(True)
    assert compiled(x).equal(model(x)) and not compiled(x).equal(plain(x))
    for a, b in zip(run(model), fp8, strict=True):
        assert a.equal(b)
