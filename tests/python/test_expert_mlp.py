"""Experts whose activation the quantisers compute: bits, gradients, and when they compute it themselves."""

import itertools

import pytest
import torch
from test_mixtures import TOP_K, Block, E, H, I, UngatedExperts, converted, gradients
from torch import nn
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import octile.torch as ot
from octile.torch._operators import ops
from octile.torch.mixture import route
from octile.torch.recipes import as_recipe

TOKENS = 150


class Counted(nn.Module):
    """An activation of a caller's own."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return nn.functional.relu(x)


def block_of(kind=Qwen3MoeExperts, activation=None, **options):
    block = Block(kind, **options)
    block.experts.act_fn = nn.ReLU() if activation is None else activation
    return block


def problems_of(call):
    """Returns the sources of the quantisers that a call runs."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.overloadpacket.__name__)
            return function(*args, **kwargs or {})

    with Watch():
        call()
    return seen


def is_fused(block, x):
    return "quantize_activation" in problems_of(lambda: block(x))


def by_operators(experts, x, chosen, scores, d_sums, code, gated):
    """Returns y and the gradients of x, up, down and the scores, of FP32 products of an activation with exact values."""
    up = experts.gate_up_proj if gated else experts.up_proj
    way = route(chosen, E)
    offsets, rows, s = way.offsets, x[way.order // TOP_K], scores.reshape(-1)[way.order].float()[:, None]
    inner, *of_x = ops.experts_forward(rows, up, offsets, code, True, True)
    g, u = (part.float() for part in inner.chunk(2, -1)) if gated else (inner.float(), torch.ones(()))
    y, *of_h = ops.experts_forward(g.relu() * u * s, experts.down_proj, offsets, code, True, True)
    dy = d_sums[way.order // TOP_K]
    dh, d_down = ops.experts_backward(dy, experts.down_proj, offsets, *of_h, code, True, True)
    parts = [dh.float() * u * (g > 0), dh.float() * g.relu()][: 2 if gated else 1]
    d_rows, d_up = ops.experts_backward(torch.cat(parts, 1) * s, up, offsets, *of_x, code, True, True)
    h = inner.chunk(2, -1)[0].relu() * inner.chunk(2, -1)[1] if gated else inner.relu()
    d_scores = torch.empty(way.order.shape[0], dtype=torch.float32)
    d_scores[way.order] = (dh * h).sum(1, dtype=torch.float32)
    sums = [rows.to(x.dtype)[way.places].unflatten(0, (-1, TOP_K)).sum(1) for rows in (y, d_rows)]
    return *sums, d_up, d_down, d_scores.view_as(scores).to(scores.dtype)


@pytest.mark.parametrize("kind", (Qwen3MoeExperts, UngatedExperts))
@pytest.mark.parametrize("recipe", ("blockwise", "blockwise_hybrid", "blockwise:f32"))
def test_bits_are_those_of_the_operators(kind, recipe):
    torch.manual_seed(3)
    block = converted(block_of(kind), recipe)
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    scores, chosen = block.router(x).softmax(-1).detach().topk(TOP_K)
    d_sums = torch.randn_like(x)
    given = x.clone().requires_grad_(), scores.clone().requires_grad_()
    y = block.experts(given[0], chosen, given[1])
    y.backward(d_sums)
    gated = kind is Qwen3MoeExperts
    up = block.experts.gate_up_proj if gated else block.experts.up_proj
    made = y, given[0].grad, up.grad, block.experts.down_proj.grad, given[1].grad
    expected = by_operators(block.experts, x, chosen, scores, d_sums, as_recipe(recipe).code, gated)
    for name, ours, theirs in zip(("y", "x", "up", "down", "scores"), made, expected, strict=True):
        assert ours.equal(theirs), name
    with torch.no_grad():
        assert block.experts(x, chosen, scores).equal(y)


@pytest.mark.parametrize("activation", (nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.ReLU()))
def test_results_are_near_those_without_fp8(activation):
    torch.manual_seed(4)
    block, x = block_of(activation=activation), torch.randn(TOKENS, H, dtype=torch.bfloat16)
    fp8 = converted(block)
    assert is_fused(fp8, x)
    bound = 0.16 if isinstance(activation, nn.ReLU) else 0.1  # rounding moves values across its step
    for ours, theirs in zip(gradients(fp8, x), gradients(block, x), strict=True):
        assert (ours.float() - theirs.float()).norm() < bound * theirs.float().norm()


def test_gradients_that_nobody_asks_for_are_left_out():
    torch.manual_seed(5)
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    whole = converted(block_of())
    all_gradients = dict(zip(("x", *(n for n, _ in whole.named_parameters())), gradients(whole, x)[1:], strict=True))
    names = ["experts.gate_up_proj", "experts.down_proj", "router.weight"]
    for wanted in itertools.product((False, True), repeat=4):
        block = converted(block_of())
        block.load_state_dict(whole.state_dict())
        for name, is_wanted in zip(names, wanted[1:], strict=True):
            block.get_parameter(name).requires_grad_(is_wanted)
        block.router.bias.requires_grad_(False)
        given = x.clone().requires_grad_(wanted[0])
        y = block(given)
        if not any(wanted):
            assert not y.requires_grad
            continue
        generator = torch.Generator().manual_seed(1)
        y.backward(torch.randn(y.shape, generator=generator).to(y.dtype))
        found = {"x": given.grad} | {name: block.get_parameter(name).grad for name in names}
        for name, is_wanted in zip(("x", *names), wanted, strict=True):
            assert (found[name] is not None) == is_wanted, (name, wanted)
            assert not is_wanted or found[name].equal(all_gradients[name]), (name, wanted)


def test_weights_with_main_grad_get_their_gradients_there():
    torch.manual_seed(6)
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    block = converted(block_of())
    before = gradients(block, x)
    block.zero_grad()
    weights = [block.experts.gate_up_proj, block.experts.down_proj]
    for weight in weights:
        weight.main_grad = torch.ones(weight.shape)
    gradients(block, x)
    for weight, expected in zip(weights, before[2:4], strict=True):
        assert (weight.main_grad - 1 - expected.float()).abs().max() <= 0.01 * expected.float().abs().max()


def test_an_activation_that_is_watched_or_unknown_is_called():
    torch.manual_seed(7)
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    block = converted(block_of())
    assert is_fused(block, x)
    seen = []
    hook = block.experts.act_fn.register_forward_hook(lambda *_: seen.append(1))
    assert not is_fused(block, x) and seen == [1]
    hook.remove()
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    assert not is_fused(block, x) and nn.ReLU in seen
    everywhere.remove()
    block.experts.act_fn = Counted()
    block(x)
    assert Counted.calls == 1
    block.experts.act_fn = nn.SiLU()
    assert is_fused(block, x)
    block.experts._apply_gate = lambda inner: inner.chunk(2, -1)[0]
    assert not is_fused(block, x)


def test_gates_of_other_experts_are_called():
    class Clamped(Qwen3MoeExperts):
        def _apply_gate(self, inner):
            gate, up = inner.chunk(2, dim=-1)
            return self.act_fn(gate).clamp(max=1) * up

    class Exchanged(Qwen3MoeExperts):
        def _apply_gate(self, inner):
            up, gate = inner.chunk(2, dim=-1)
            return self.act_fn(gate) * up

    x = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    for kind in (Clamped, Exchanged):
        torch.manual_seed(8)
        block = Block(dtype=torch.bfloat16)
        block.experts.__class__ = kind
        fp8 = converted(block)
        assert not is_fused(fp8, x)
        for ours, theirs in zip(gradients(fp8, x), gradients(block, x), strict=True):
            assert (ours.float() - theirs.float()).norm() < 0.2 * theirs.float().norm()


def test_other_recipes_and_switches_compute_the_activation_themselves():
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    for recipe in ("tensorwise", "delayed", "blockwise:dw=bf16"):
        assert not is_fused(converted(block_of(), recipe), x), recipe
    assert not is_fused(converted(block_of(), fuse=False), x)
    block = converted(block_of())
    ot.set_fp8(block, False)
    assert not is_fused(block, x)


def test_a_second_derivative_is_refused():
    block, x = converted(block_of()), torch.randn(8, H, dtype=torch.bfloat16, requires_grad=True)
    for parameter in block.parameters():
        parameter.requires_grad_(False)
    [dx] = torch.autograd.grad(block(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiated again"):
        dx.sum().backward()


def test_one_launch_quantises_the_weights_of_all_experts():
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    converted(block_of())(x)
    weights = [text for text in ot.problems() if "q=e4m3:128x128" in text and f"cols={I}" in text]
    assert weights and all("group=stacked" in text for text in weights)
