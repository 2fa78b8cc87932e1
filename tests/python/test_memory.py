"""The memory that a step keeps: inputs that siblings share, inputs that others keep, and FP8 copies of weights."""

from __future__ import annotations

import copy
import gc
import itertools

import pytest
import torch
from reference import kept_bytes
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import octile.torch as ot

ops = torch.ops.octile


class Attention(nn.Module):
    """Three layers with one input, and one behind them."""

    def __init__(self, **options):
        super().__init__()
        self.q, self.k, self.v = (ot.Linear(64, 32, bias=name == "v", **options) for name in "qkv")
        self.o = ot.Linear(32, 64, **options)

    def forward(self, x):
        x = x * 1.0
        return self.o(self.q(x) * self.k(x) + self.v(x))


class Calls(TorchDispatchMode):
    """Counts the calls of our operators."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("octile::")
        self.counts[name] = self.counts.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


def gradients(model, x):
    """Returns y and the gradients of x and of the parameters."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = model(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def unshared(model, x):
    """The same of a copy, whose layers have never seen each other's input."""
    other = copy.deepcopy(model)

    class Apart(nn.Module):
        def forward(self, x):
            x = x * 1.0
            q, k, v = (layer(x + 0) for layer in (other.q, other.k, other.v))
            return other.o(q * k + v)

    apart = Apart()
    apart.inner = other
    return gradients(apart, x)


def assert_equal(a, b):
    assert len(a) == len(b) and all(p.equal(q) for p, q in zip(a, b, strict=True))


def meet(*layers):
    """Calls layers with one input, after which they share."""
    x = torch.randn(9, 64, requires_grad=True) * 1.0
    for layer in layers:
        layer(x)


# ---- siblings


@pytest.mark.parametrize("recipe", ["blockwise", "blockwise_hybrid", "tensorwise", "rowwise", "mxfp8"])
def test_siblings_quantise_their_input_once(recipe):
    model, x = Attention(recipe=recipe), torch.randn(9, 64)
    wanted = unshared(model, x)
    gradients(model, x)  # in which the layers meet
    with Calls() as calls:
        assert_equal(gradients(model, x), wanted)
    assert calls.counts["quantize_input"] == 1 and calls.counts["linear_forward"] == 4


def test_siblings_keep_one_copy():
    model, x = Attention(), torch.randn(256, 64, requires_grad=True)
    meet(model.q, model.k, model.v)
    copy_of_x = 256 * 64 + 2 * 64 * 4  # codes, and a scale of each 128 tokens
    alone = [kept_bytes(layer, x) for layer in (model.q, model.k, model.v)]
    assert alone == [copy_of_x] * 3
    three = nn.ModuleList([model])
    three.forward = lambda x: [layer(x) for x in [x * 1.0] for layer in (model.q, model.k, model.v)]
    assert kept_bytes(three, x) == copy_of_x


def of_compiled(model, x):
    torch._dynamo.reset()
    graphs = []

    def keep_graph(module, inputs):
        from functorch.compile import make_boxed_func

        graphs.append([str(node.target) for node in module.graph.nodes])
        return make_boxed_func(module.forward)

    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    backend = aot_autograd(fw_compiler=keep_graph, partition_fn=min_cut_rematerialization_partition)
    made = gradients(torch.compile(model, fullgraph=True, backend=backend), x)
    return made, graphs


def test_compiled_siblings_quantise_their_input_once():
    model, x = Attention(), torch.randn(9, 64)
    made, (forward, backward) = of_compiled(model, x)
    assert forward.count("octile.quantize_input.default") == 2  # of q, k and v, and of o
    assert "octile.quantize_input.default" not in backward
    assert_equal(made, unshared(model, x))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_siblings_under_checkpointing_and_autocast(reentrant, autocast):
    model, x = Attention(), torch.randn(9, 64)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        wanted = unshared(model, x)
        gradients(model, x)
        assert_equal(gradients(Checkpointed(), x), wanted)
        with Calls() as calls:
            gradients(model, x)
    assert calls.counts["quantize_input"] == 1


def test_an_input_that_changes_between_siblings_is_quantised_again():
    model = Attention()
    meet(model.q, model.k)
    changes = (lambda x: x.mul_(2), lambda x: x[3].neg_(), lambda x: x.detach().add_(1), lambda x: x.view(-1).zero_())
    for change in changes:
        x = torch.randn(9, 64, requires_grad=True) * 1.0
        with Calls() as calls:
            model.q(x)
        assert calls.counts["quantize_input"] == 1
        with torch.no_grad():
            change(x)
        assert model.k(x).equal(ot.linear(x.detach().clone(), model.k.weight.detach(), None))


@pytest.mark.parametrize("gradients", [False, True])
def test_buffers_are_quantised_by_each_call(gradients):
    model, x = Attention(), torch.randn(9, 64, requires_grad=gradients)
    meet(model.q, model.k, model.v)
    with torch.set_grad_enabled(gradients):
        for layer in (model.q, model.k, model.v):
            x.data.neg_().mul_(2)  # as a replayed graph writes its static output
            assert layer(x).equal(ot.linear(x.detach().clone(), layer.weight.detach(), layer.bias))


def test_the_same_tensor_in_the_next_step_is_quantised_again():
    model = Attention()
    layers = model.q, model.k, model.v
    meet(*layers)
    x = torch.randn(9, 64, requires_grad=True) * 1.0
    for _ in range(3):
        x.data.neg_().mul_(2)
        for layer in layers:
            assert layer(x).equal(ot.linear(x.detach().clone(), layer.weight.detach(), layer.bias))


def test_siblings_of_which_some_are_frozen_or_have_another_recipe():
    x = torch.randn(9, 64)
    for frozen, other in itertools.product((0, 1, 2), (None, "rowwise")):
        model = Attention()
        if other is not None:
            model.k = ot.Linear(64, 32, bias=False, recipe=other)
        [model.q, model.k, model.v][frozen].weight.requires_grad_(False)
        wanted = unshared(model, x)
        for _ in range(2):
            assert_equal(gradients(model, x), wanted)


def test_a_shared_input_is_freed_with_the_next_call():
    model = Attention()
    for _ in range(2):
        meet(model.q, model.k, model.v)
    from octile.torch.shared_input import _last

    assert _last.copies is not None
    model.o(torch.randn(9, 32))
    assert _last.copies is None


# ---- a layer that keeps its input


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("main_grad", [False, True])
def test_a_layer_that_keeps_its_input_has_the_same_bits(compiled, main_grad):
    made = []
    torch.manual_seed(0)
    layer, x = ot.Linear(64, 32, dtype=torch.bfloat16), torch.randn(40, 64, dtype=torch.bfloat16)
    for keeps in (False, True):
        torch._dynamo.reset()
        layer.keeps_input = keeps
        if main_grad:
            layer.weight.main_grad = torch.zeros(32, 64)
        run = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
        results = gradients(layer if not compiled else _Wrapped(run, layer), x)
        made.append(results + ([layer.weight.main_grad] if main_grad else []))
    assert_equal(*made)


class _Wrapped(nn.Module):
    def __init__(self, run, layer):
        super().__init__()
        self.layer, self.run = layer, [run]

    def forward(self, x):
        return self.run[0](x)


def test_what_is_kept_by_a_layer_that_keeps_its_input():
    layer, x = ot.Linear(64, 32, bias=False), torch.randn(256, 64, requires_grad=True)
    layer.keeps_input = True
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x)
    assert {t.data_ptr() for t in kept if t.numel()} == {x.data_ptr(), layer.weight.data_ptr()}
    layer.weight.requires_grad_(False)
    assert kept_bytes(layer, x) == 0


class Inner(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Attending(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.q, self.last, self.o_proj = (nn.Linear(64, 64) for _ in range(3))
        self.inner = inner

    def forward(self, x):
        q = self.q(x)
        return self.last(nn.functional.scaled_dot_product_attention(q, q, q)) + self.o_proj(x)


class AttendingByChild(Attending):
    def forward(self, x):
        q = self.o_proj(self.q(x))
        return self.last(self.inner(q, q, q))


class Manual(Attending):
    def forward(self, x):
        q = self.q(x)
        return self.o_proj(self.last((q @ q.mT).softmax(-1) @ q))


@pytest.mark.parametrize("kind, wanted", [(Attending, ["last"]), (AttendingByChild, ["last"]), (Manual, [])])
def test_convert_lets_layers_behind_an_attention_keep_their_input(kind, wanted):
    model = nn.ModuleDict({"attention": kind(Inner()), "o_proj": nn.Linear(64, 64)})
    report = ot.convert(model, min_dims=16)
    assert report.keep_input == [f"attention.{name}" for name in wanted]
    kept = [name for name, layer in model.named_modules() if isinstance(layer, ot.Linear) and layer.keeps_input]
    assert kept == report.keep_input
    assert ("keep their input, as attention does: attention.last" in str(report)) == bool(wanted)
    assert not ot.convert(nn.Sequential(kind(Inner())), "delayed", min_dims=16).keep_input  # which keeps FP8 copies


# ---- copies of weights


@pytest.mark.parametrize("weights", ["none", "rowwise", "both"])
def test_policies_of_copies(weights):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))
    plain = copy.deepcopy(model)
    ot.convert(plain, min_dims=16, preset="all-linear", weights="both")
    report = ot.convert(model, min_dims=16, preset="all-linear", weights=weights)
    assert {"none": "no FP8 copies", "rowwise": "one byte", "both": "two bytes"}[weights] in str(report)
    x = torch.randn(9, 64)
    for _ in range(3):  # steps of two microbatches
        before = ops.weight_copies_made()
        first, second = gradients(model, x), gradients(model, x)
        # For each layer: both copies in each microbatch; the row-wise one once, and the other in each; both once.
        assert ops.weight_copies_made() - before == {"none": 8, "rowwise": 6, "both": 4}[weights]
        assert_equal(first, second)
        assert_equal(first, gradients(plain, x))
        with torch.no_grad():
            for parameter in (*model.parameters(), *plain.parameters()):
                parameter.mul_(0.5)


def test_a_policy_is_a_layers_own_and_goes_with_it():
    layer, x = ot.Linear(64, 32), torch.randn(9, 64)
    layer.set_rule(copies="none")
    for one in (layer, copy.deepcopy(layer)):
        before = ops.weight_copies_made()
        for _ in range(2):
            gradients(one, x)
        assert ops.weight_copies_made() - before == 4
    before = ops.weight_copies_made()
    with torch.no_grad():
        for _ in range(3):
            layer(x)
    assert ops.weight_copies_made() - before == 1  # kept by calls without gradients


def test_weights_is_named():
    with pytest.raises(ValueError, match="weights is 'all'; allowed are 'none', 'rowwise', 'both'"):
        ot.convert(nn.Sequential(nn.Linear(64, 64)), min_dims=16, weights="all")


@pytest.mark.parametrize("weights", ["none", "rowwise"])
def test_copies_of_other_passes_are_freed_when_training_goes_on(weights):
    layer, x = ot.Linear(1024, 1024, bias=False), torch.randn(9, 1024)
    layer.set_rule(copies=weights)
    with torch.no_grad():
        layer(x)
    gc.collect()
    layer(x.requires_grad_()).sum().backward()
    with torch.no_grad():
        before = ops.weight_copies_made()
        layer(x)
        assert ops.weight_copies_made() - before == (1 if weights == "none" else 0)


# ---- a block of a real model


def test_a_llama_block_keeps_fewer_bytes_than_in_bf16():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=3584, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=64, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.LlamaModel(config).to(torch.bfloat16)
    block, x = model.layers[0], torch.randn(1, 128, 1024, dtype=torch.bfloat16, requires_grad=True)
    rotary = model.rotary_emb(x, torch.arange(128)[None])
    run = nn.Module()
    run.block = block
    run.forward = lambda x: block(x, position_embeddings=rotary)
    plain = kept_bytes(run, x)
    ot.convert(run, min_dims=16, preset="all-linear")
    run(x).sum().backward()
    assert kept_bytes(run, x) <= 0.51 * plain  # with FP8 copies of the results of norms 0.545
