"""Inputs that a norm computed: nothing of them is kept, and backward quantises them again with the same bits."""

import pytest
import torch
from functorch.compile import make_boxed_func
from reference import kept_bytes
from test_gated_modules import Mlp
from test_memory import Calls, assert_equal, gradients
from test_norms import NORMS, Norm, any_norm, layer_norm
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import checkpoint

import octile.torch as ot
from octile.torch import norms

TOKENS = 40


class Block(nn.Module):
    """A norm before three layers, and one before an MLP."""

    change = staticmethod(lambda y: y)  # of the first norm's result, on its way to the layers

    def __init__(self, recipe="blockwise", dtype=torch.bfloat16, norm="rms"):
        super().__init__()
        self.first, self.second = NORMS[norm](), NORMS[norm]()
        self.q, self.k, self.v = (nn.Linear(64, 64, bias=False) for _ in "qkv")
        self.mlp = Mlp()
        self.to(dtype)
        report = ot.convert(self, recipe=recipe, min_dims=16, preset="all-linear")
        assert report.norms == ["first", "second"] and (report.fused == ["mlp"] or recipe == "delayed")

    def forward(self, x):
        y = self.change(self.first(x * 1.0))
        x = x + self.q(y) * self.k(y) + self.v(y)
        return x + self.mlp(self.second(x))


def block(**options):
    torch.manual_seed(0)
    return Block(**options)


def inputs(dtype=torch.bfloat16, scale=1.0):
    return torch.randn(TOKENS, 64, generator=torch.Generator().manual_seed(1)).mul(scale).to(dtype)


@pytest.fixture
def forgotten(monkeypatch):
    """Calls without the notes that norms leave."""

    def call(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(norms, "remember", lambda y, *_: y)
            return function(*arguments)

    return call


def counted(function, *arguments):
    with Calls() as calls:
        made = function(*arguments)
    return made, calls.counts.get("quantize_normed", 0)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("recipe", ["blockwise", "blockwise_hybrid", "tensorwise", "rowwise", "mxfp8", "delayed"])
def test_gradients_have_the_bits_of_a_kept_copy(recipe, norm, forgotten):
    model, x = block(recipe=recipe, norm=norm), inputs()
    wanted = forgotten(gradients, model, x)
    for _ in range(2):  # siblings share their input from the second call on
        made, again = counted(gradients, model, x)
        assert again == (0 if recipe == "delayed" else 2)  # of q, k and v once
        if recipe != "delayed":
            assert_equal(made, wanted)


@any_norm
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_types_and_norms(dtype, norm, forgotten):
    model, x = block(dtype=dtype, norm=norm), inputs(dtype, 0.01)
    wanted = forgotten(gradients, model, x)
    made, again = counted(gradients, model, x)
    assert_equal(made, wanted)
    assert again == (0 if dtype == torch.float16 else 2)  # no quantiser rounds to float16 on the way


@any_norm
def test_nothing_is_kept_of_a_norms_result(norm, forgotten):
    model, x = block(norm=norm), inputs().requires_grad_()
    gradients(model, x)
    copies = 2 * (64 * 48 + 64 * 4)  # codes in rows of 48, and scales
    parameters = 2 * 64 * 2 * {"rms": 1, "offset": 0}.get(norm, 2)  # that is kept with its offset for the norm too
    assert kept_bytes(model, x) == forgotten(kept_bytes, model, x) - copies + parameters


@pytest.mark.parametrize("bias", [False, True])
def test_an_fp8_layer_after_a_layer_norm_keeps_less_than_the_norms_result(bias):
    plain = nn.Sequential(layer_norm(bias=bias), nn.Linear(64, 64, bias=False)).bfloat16()
    x = inputs().requires_grad_()
    before = kept_bytes(plain, x)
    assert ot.convert(plain, min_dims=16, preset="all-linear").norms == ["0"]
    assert kept_bytes(plain, x) <= before - TOKENS * 64 * 2 + TOKENS * 4 * 2 + 2 * 64 * 2  # rows in float32, parameters


@pytest.mark.parametrize("norm", ["rms", "layer", "layer without bias"])
def test_compiled_blocks_keep_nothing_of_it_either(norm, forgotten):
    model, x = block(norm=norm), inputs().requires_grad_()

    def compiled():
        graphs = []

        def keep_graph(module, _):
            graphs.append([str(node.target) for node in module.graph.nodes])
            return make_boxed_func(module.forward)

        backend = aot_autograd(fw_compiler=keep_graph, partition_fn=min_cut_rematerialization_partition)
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True, backend=backend)
        return kept_bytes(run, x), gradients(run, x), graphs

    before, wanted, _ = forgotten(compiled)
    after, made, (forward, backward) = compiled()
    name = "octile.quantize_normed.default"
    assert backward.count(name) == 2 and name not in forward
    assert_equal(made, wanted)
    assert after == before - 2 * (64 * 48 + 64 * 4)


CHANGES = {
    "in place": lambda y: y.mul_(2),
    "a row": lambda y: y[3].neg_() is not None and y,
    "by a view": lambda y: y.view(-1)[5:].zero_() is not None and y,
    "by a detached view": lambda y: y.detach().add_(1) is not None and y,
}


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_result_that_is_changed_is_quantised_as_it_is(change, norm, forgotten):
    model, x = block(norm=norm), inputs()
    model.change = CHANGES[change]
    wanted = forgotten(gradients, model, x)
    made, again = counted(gradients, model, x)
    assert_equal(made, wanted)
    assert again == 1  # of the MLP's input alone

    def gradient_of_q(call):
        return torch.autograd.grad(call(x).sum(), model.q.weight)[0]

    def run(x):
        return model.q(model.change(model.first(x)))

    torch._dynamo.reset()
    assert gradient_of_q(torch.compile(run, fullgraph=True, backend="aot_eager")).equal(gradient_of_q(run))


def test_a_result_of_one_compiled_part_may_change_before_the_next():
    model, x = block(), inputs()
    torch._dynamo.reset()
    norm, q = (torch.compile(part, fullgraph=True, backend="aot_eager") for part in (model.first, model.q))
    results = []
    for first, layer in ((norm, q), (norm, model.q), (model.first, q), (model.first, model.q)):
        y = first(x.clone().requires_grad_())
        with torch.no_grad():
            y.mul_(2)
        model.q.weight.grad = None
        layer(y).sum().backward(inputs=[model.q.weight])
        results.append(model.q.weight.grad)
    assert all(result.equal(results[-1]) for result in results)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointed_blocks(reentrant, compiled, norm):
    if reentrant and compiled:
        pytest.skip("PyTorch compiles no reentrant checkpoint")
    model, x = block(norm=norm), inputs()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    run = Checkpointed()
    wanted = gradients(model, x)
    if compiled:
        torch._dynamo.reset()
        wanted = gradients(torch.compile(model, fullgraph=True, backend="aot_eager"), x)
        run = torch.compile(run, fullgraph=True, backend="aot_eager")
    made, again = counted(gradients, run, x)
    assert_equal(made, wanted)
    assert compiled or again == 2


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_autocast_and_frozen_weights_need_none(norm):
    model, x = block(dtype=torch.float32, norm=norm), inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert counted(gradients, model, x)[1] == 0  # the norms are the model's own
    for layer in (model.q, model.k, model.v, model.mlp.gate_proj, model.mlp.up_proj):
        layer.weight.requires_grad_(False)
    assert counted(gradients, model, x)[1] == 0
    model.k.weight.requires_grad_(True)
    assert counted(gradients, model, x)[1] == 1
    with torch.no_grad():
        assert not hasattr(model.first(x), "octile_result")


def test_one_gradient_of_several_twice_and_of_the_second_order():
    model, x = block(), inputs().requires_grad_()
    wanted = gradients(model, x)
    loss = model(x).float().square().sum()
    weights = [model.k.weight, model.q.weight]
    parts = [torch.autograd.grad(loss, w, retain_graph=True)[0] for w in weights * 2]
    assert parts[0].equal(parts[2]) and parts[1].equal(parts[3])
    assert any(parts[0].equal(w) for w in wanted) and any(parts[1].equal(w) for w in wanted)
    [dw] = torch.autograd.grad(model.q(model.first(x)).sum(), model.q.weight, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiated again"):
        torch.autograd.grad(dw.sum(), model.first.weight)


@pytest.mark.parametrize("norm", ["rms", "offset", "centred"])
def test_an_input_that_is_changed_before_backward(norm):
    def gradients_of(dtype, change):
        model, x = block(dtype=dtype, norm=norm), inputs(dtype)
        residual = x.requires_grad_() * 1.0
        y = model.q(model.first(residual))
        with torch.no_grad():
            residual.mul_(change)
        return torch.autograd.grad(y.sum(), (x, model.first.weight, model.q.weight))

    assert_equal(gradients_of(torch.bfloat16, 2), gradients_of(torch.bfloat16, 1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # the norm of the model says so too
        gradients_of(torch.float32, 2)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_an_input_that_is_changed_before_the_layer(norm):
    model, x = block(dtype=torch.float32, norm=norm), inputs(torch.float32).requires_grad_()

    def run(x, change):
        residual = x * 1.0
        y = model.first(residual)
        if change:
            residual.mul_(2)
        return model.q(y)

    wanted, made = (torch.autograd.grad(run(x, change).sum(), model.q.weight)[0] for change in (False, True))
    assert made.equal(wanted)


def test_weights_under_a_sentry():
    model, x = block(), inputs()
    wanted = gradients(model, x)
    sentry = ot.sentry(model)
    assert_equal(sentry.run(lambda: gradients(model, x)), wanted)
    assert not sentry.found_nonfinite


@pytest.mark.parametrize("norm, source", [(Norm, "rmsnorm_again"), (layer_norm, "layernorm_again")])
def test_warmup_and_the_report_know_of_them(norm, source):
    model = nn.Sequential(norm(80), nn.Linear(80, 16), nn.Linear(16, 80)).bfloat16()
    report = ot.convert(model, min_dims=16, preset="all-linear")
    assert report.kept == (2 * 80 + 2 * 16, 16) and "norms beside it compute them" in str(report)
    ot.warmup(model, tokens=(TOKENS, TOKENS))
    assert f"quantize rows=? cols=80 x=bf16 q=e4m3:1x128:pow2 src={source} via=bf16 out=col" in ot.problems()


OPERANDS = {
    "x": torch.zeros(8, 64),
    "rstd": torch.zeros(8, 1),
    "weight": torch.zeros(64),
    "recipe": 0,
    "via_bf16": False,
    "mean": None,
    "bias": None,
}
MEAN = torch.zeros(8, 1)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"rstd": torch.zeros(7, 1)}, r"rstd is \[7, 1\]; allowed is contiguous float32, one for each of 8 rows"),
        ({"rstd": torch.zeros(8, dtype=torch.bfloat16)}, "rstd is .* float32"),
        ({"weight": torch.zeros(32)}, r"weight is \[32\]; allowed is \[64\] of x's type"),
        ({"mean": MEAN}, "bias is None; allowed are both mean and bias, of a layer norm, or neither"),
        ({"bias": torch.zeros(64)}, "mean is None; allowed are both"),
        ({"mean": MEAN[1:], "bias": torch.zeros(64)}, r"mean is \[7, 1\]; allowed is contiguous float32, one for each"),
        ({"mean": MEAN, "bias": torch.zeros(32)}, r"bias is \[32\]; allowed is \[64\] of x's type"),
        ({"x": torch.zeros(8, 64).half(), "weight": torch.zeros(64).half()}, "x is of float16; allowed are bfloat16"),
        ({"x": torch.zeros(())}, "x has no dimension"),
        ({"recipe": ot.Recipe("delayed").code}, "recipe is 'delayed'"),
    ],
)
def test_operands_that_are_refused(wrong, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        torch.ops.octile.quantize_normed(*(OPERANDS | wrong).values())
