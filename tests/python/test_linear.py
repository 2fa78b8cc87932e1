"""The linear layer: its numbers, and when its weight is quantised."""

import copy
import ctypes
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from reference import ALL_RECIPES, assert_close, layer
from torch import nn

import octile.torch as ot

quantizations = torch.ops.octile.weight_quantizations


def run(module, x, dy):
    """Returns y and the gradients of x, weight and bias."""
    x = x.detach().requires_grad_()
    y = module(x)
    y.backward(dy)
    grads = x.grad, module.weight.grad, None if module.bias is None else module.bias.grad
    module.zero_grad()
    return y.detach(), *grads


@pytest.mark.parametrize("recipe", ALL_RECIPES)
@pytest.mark.parametrize("tokens", [1, 7, 77, 129])
def test_forward_and_gradients_against_fp64_of_the_dequantised_operands(recipe, tokens):
    module = ot.Linear(272, 144, recipe=recipe)
    x, dy = torch.randn(tokens, 272, dtype=torch.bfloat16), torch.randn(tokens, 144, dtype=torch.bfloat16)
    y, dx, dw, db = run(module, x, dy)
    expected = layer(x, module.weight, module.bias, dy, recipe)
    for actual, wanted in zip((y, dx, dw, db), expected, strict=True):
        assert_close(actual, wanted)
    assert y.dtype == dx.dtype == torch.bfloat16 and dw.dtype == torch.float32


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_element_types(x_dtype, weight_dtype):
    module = ot.Linear(64, 32, dtype=weight_dtype, recipe=ot.Recipe(scales="f32"))
    x, dy = torch.randn(5, 64, dtype=x_dtype), torch.randn(5, 32, dtype=x_dtype)
    y, dx, dw, db = run(module, x, dy)
    assert (y.dtype, dx.dtype, dw.dtype, db.dtype) == (x_dtype, x_dtype, weight_dtype, weight_dtype)
    for actual, wanted in zip((y, dx, dw, db), layer(x, module.weight, module.bias, dy, module.recipe), strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64), (2, 1, 3, 64), (0, 64), (2, 0, 64)])
def test_leading_dimensions_of_any_rank(shape):
    module = ot.Linear(64, 32)
    x, dy = torch.randn(shape), torch.randn(*shape[:-1], 32)
    y, dx, dw, db = run(module, x, dy)
    assert y.shape == dy.shape and dx.shape == x.shape
    flat = run(module, x.reshape(-1, 64), dy.reshape(-1, 32))
    assert y.reshape(-1, 32).equal(flat[0]) and dw.equal(flat[2]) and db.equal(flat[3])
    if 0 in shape:
        assert dw.eq(0).all() and db.eq(0).all()


def test_inputs_that_are_not_contiguous():
    module = ot.Linear(64, 32)
    x, dy = torch.randn(64, 40).t(), torch.randn(32, 40).t()
    for a, b in zip(run(module, x, dy), run(module, x.contiguous(), dy.contiguous()), strict=True):
        assert a.equal(b)
    x.requires_grad_()
    module(x).sum().backward()  # dy is one element, expanded
    assert module.bias.grad.eq(40).all()


@pytest.mark.parametrize("frozen", ["x", "weight", "bias", "x and weight"])
def test_only_gradients_that_are_needed(frozen):
    module = ot.Linear(64, 32)
    x, dy = torch.randn(40, 64, requires_grad="x" not in frozen.split()), torch.randn(40, 32)
    everything = run(module, x, dy)
    module.weight.requires_grad_("weight" not in frozen)
    module.bias.requires_grad_(frozen != "bias")
    x = x.detach().requires_grad_("x" not in frozen.split())
    module(x).backward(dy)
    for actual, name, wanted in zip(
        (x.grad, module.weight.grad, module.bias.grad), ("x", "weight", "bias"), everything[1:], strict=True
    ):
        assert actual is None if name in frozen.split() else actual.equal(wanted)


def test_backward_keeps_the_transposed_fp8_copy_of_x_alone():
    module = ot.Linear(512, 256, dtype=torch.bfloat16)
    x = torch.randn(128, 512, dtype=torch.bfloat16, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        module(x)
    kept = [t for t in kept if t is not module.weight and t.data_ptr() != module.weight.data_ptr()]
    assert sum(t.nbytes for t in kept) <= 0.52 * x.nbytes
    assert {t.dtype for t in kept} == {torch.float8_e4m3fn, torch.float32}


def test_nothing_is_kept_without_gradients():
    module = ot.Linear(64, 32)
    x = torch.randn(9, 64)
    with torch.no_grad():
        y = module(x)
    assert not y.requires_grad and y.equal(module(x).detach())


# ---- when the weight is quantised


def test_a_weight_is_quantised_once_an_optimizer_step():
    module = ot.Linear(64, 32)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        before = quantizations()
        for _ in range(3):
            module(torch.randn(9, 64, requires_grad=True)).sum().backward()
        assert quantizations() == before + 1
        optimizer.step()


CHANGES = {
    "in place": lambda m: m.weight.mul_(2),
    "copy_": lambda m: m.weight.copy_(torch.randn(32, 64)),
    "a new parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.randn(32, 64))),
    "new data": lambda m: setattr(m.weight, "data", torch.randn(32, 64)),
    "load_state_dict": lambda m: m.load_state_dict(nn.Linear(64, 32).state_dict()),
    "assigned": lambda m: m.load_state_dict(nn.Linear(64, 32).state_dict(), assign=True),
    "double, then float": lambda m: m.double().float().weight.mul_(2),
    "hidden, then said": lambda m: (m.weight.data.mul_(2), ot.weights_changed()),
    "hidden, then eval": lambda m: (m.weight.data.mul_(2), m.eval()),
    "hidden, then a step": lambda m: (m.weight.data.mul_(2), torch.optim.SGD(m.parameters()).step()),
}
# Writes that nobody reports and PyTorch does not count.
HIDDEN = {
    "data": lambda m: m.weight.data.mul_(2),
    "one element": lambda m: m.weight.data[5, 7:8].neg_(),
    "two rows exchanged": lambda m: m.weight.data.copy_(m.weight.data[[1, 0, *range(2, 32)]]),
    "numpy": lambda m: m.weight.detach().numpy().__imul__(2),
    "dlpack": lambda m: torch.from_dlpack(m.weight.detach()).mul_(2),
    "another tensor over its memory": lambda m: torch.as_strided(m.weight.data, (32, 64), (64, 1)).mul_(2),
    "its address": lambda m: ctypes.memset(m.weight.data_ptr(), 0, 64 * 4),
    "and back": lambda m: (m.weight.data.mul_(2), m(torch.randn(9, 64)), m.weight.data.neg_()),
    "another model's step": lambda m: (m.weight.data.mul_(2), torch.optim.SGD([torch.ones(1)]).step()),
}


def assert_seen(module, change):
    x = torch.randn(9, 64)
    with torch.no_grad():
        old = module(x)
        change(module)
        new = module(x)
        fresh = ot.linear(x, module.weight.detach().clone(), module.bias)
    assert new.equal(fresh) and not new.equal(old)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_weight_that_changes_is_quantised_again(change, trusted):
    module = ot.Linear(64, 32)
    ot.trust_weights(module, trusted)
    assert_seen(module, CHANGES[change])


@pytest.mark.parametrize("used", ["once", "often", "in training", "where it was trusted"])
@pytest.mark.parametrize("change", HIDDEN)
def test_a_weight_that_changes_where_nobody_says_so_is_quantised_again(change, used):
    module, x = ot.Linear(64, 32), torch.randn(9, 64)
    ot.trust_weights(module, used == "where it was trusted")
    for _ in range(3 if used == "often" else 1):
        module(x)
    if used == "in training":  # each contents were used once
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            module(x).sum().backward()
            optimizer.step()
    ot.trust_weights(module, False)
    assert_seen(module, HIDDEN[change])


def test_a_weight_that_is_trusted_is_not_compared():
    module, x = ot.Linear(64, 32), torch.randn(9, 64)
    ot.trust_weights(module)
    with torch.no_grad():
        old = module(x)
        module.weight.data.mul_(2)
        assert module(x).equal(old)
        assert_seen(copy.deepcopy(module), HIDDEN["data"])  # nobody trusts the copy
        torch.optim.SGD([torch.ones(1)]).step()  # another model's
        assert module(x).equal(old)
        ot.trust_weights(module, False)
        assert not module(x).equal(old)


@pytest.mark.parametrize(("model", "trusted"), [("model", True), (nn.Linear(2, 2), 1), ({}, True)])
def test_what_trust_weights_refuses(model, trusted):
    with pytest.raises((TypeError, ValueError), match=r"octile: (model|trusted) is of type"):
        ot.trust_weights(model, trusted)


@pytest.mark.parametrize("freed", ["data", "parameter"])
def test_memory_and_copies_go_when_the_weight_gets_other_memory(freed):
    module, x = ot.Linear(64, 32), torch.randn(9, 64)
    module(x)
    memory = weakref.ref(module.weight.untyped_storage())
    if freed == "data":
        module.weight.data = torch.randn(32, 64)
    else:
        module.weight = nn.Parameter(torch.randn(32, 64))
    gc.collect()
    assert memory() is None or memory().data_ptr() != module.weight.data_ptr()
    before = quantizations()
    for _ in range(4):
        y = module(x)
    assert y.equal(ot.linear(x, module.weight.detach().clone(), module.bias))
    assert quantizations() <= before + 2  # the function's, and one for the four calls


def test_addresses_that_are_used_again_are_no_confusion():
    x = torch.randn(9, 64)
    for seed in range(20):
        torch.manual_seed(seed)
        module = ot.Linear(64, 32)
        assert module(x).equal(ot.linear(x, module.weight.detach().clone(), module.bias))
        del module
    # Tensors of functional_call are nobody's parameters, and their memory is free after each call.
    module = ot.Linear(64, 32)
    for _ in range(20):
        state = {"weight": torch.randn(32, 64), "bias": torch.randn(32)}
        y = torch.func.functional_call(module, state, x)
        assert y.equal(ot.linear(x, state["weight"].clone(), state["bias"]))


def test_copies_go_when_the_weight_goes():
    from octile.torch import weights

    gc.collect()
    before = len(weights._kept)
    module = ot.Linear(64, 32)
    module(torch.randn(9, 64))
    assert len(weights._kept) == before + 1
    del module
    gc.collect()
    assert len(weights._kept) == before


def test_threads_share_one_quantisation():
    module, x = ot.Linear(256, 128), torch.randn(9, 256)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            module.weight.data.neg_()
            wanted = ot.linear(x, module.weight.detach().clone(), module.bias).detach()
            before = quantizations()
            results = list(pool.map(lambda _: module(x), range(32)))
            assert quantizations() == before + 1
            assert all(y.equal(wanted) for y in results)


def test_weights_come_and_go_in_threads():
    x = torch.randn(3, 64)

    def one(seed):
        module = ot.Linear(64, 32)
        y = module(x)
        y.sum().backward()
        return y.equal(ot.linear(x, module.weight.detach().clone(), module.bias))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))


def test_inference_tensors_are_quantised_each_time():
    with torch.inference_mode():
        module, x = ot.Linear(64, 32), torch.randn(9, 64)
        old = module(x)
        module.weight.mul_(2)
        assert not module(x).equal(old)


# ---- where the weight gradient goes


@pytest.mark.parametrize("main_dtype", [torch.float32, torch.bfloat16])
def test_main_grad_collects_microbatches_in_fp32(main_dtype):
    module = ot.Linear(64, 32, dtype=torch.bfloat16)
    module.weight.main_grad = torch.zeros(32, 64, dtype=main_dtype)
    batches = [(torch.randn(t, 64), torch.randn(t, 32)) for t in (7, 129)]
    total = torch.zeros(32, 64, dtype=torch.float64), torch.zeros(32, 64, dtype=torch.float64)
    for x, dy in batches:
        module(x).backward(dy)
        total = [a + b for a, b in zip(total, layer(x, module.weight, None, dy, "blockwise")[2], strict=True)]
    assert module.weight.grad is None
    unit = torch.finfo(main_dtype).eps * total[0].abs().max() * torch.ones_like(total[1])
    assert ((module.weight.main_grad.double() - total[0]).abs() <= unit + 2.0**-13 * total[1]).all()


def test_frameworks_that_wait_for_a_gradient_get_one():
    module = ot.Linear(64, 32)
    module.weight.main_grad = torch.zeros(32, 64)
    module.weight.grad_added_to_main_grad = False
    seen = []
    module.weight.register_hook(lambda g: seen.append(g.shape))
    module(torch.randn(9, 64)).sum().backward()
    assert module.weight.grad_added_to_main_grad and seen == [(32, 64)]
    assert module.weight.grad.eq(0).all() and module.weight.main_grad.ne(0).any()


def test_a_main_grad_of_another_shape_is_refused():
    module = ot.Linear(64, 32)
    module.weight.main_grad = torch.zeros(16, 64)
    with pytest.raises(ValueError, match=r"main_grad is \(16, 64\); allowed is contiguous \(32, 64\)"):
        module(torch.randn(9, 64)).sum().backward()


def test_a_copy_of_other_tokens_is_refused():
    ops, weight = torch.ops.octile, torch.randn(32, 64)
    _, codes, scales = ops.linear_forward(torch.randn(40, 64), weight, None, 0, True, True)
    with pytest.raises(ValueError, match=r"x_codes is \[64, 48\]; .* these tokens kept, contiguous \[64, 64\]"):
        ops.linear_backward(torch.randn(50, 32), weight, codes, scales, 0, True, True, False)


# ---- sizes


def test_sizes_that_are_no_multiples_of_16():
    with pytest.raises(ValueError, match="in_features is 100; allowed are multiples of 16 above 0, or others with"):
        ot.Linear(100, 32)
    with pytest.raises(ValueError, match="out_features is 8; allowed"):
        ot.Linear(64, 8)
    with pytest.raises(ValueError, match="unaligned is 'pad'; allowed are 'error' and 'bf16'"):
        ot.Linear(64, 32, unaligned="pad")
    module = ot.Linear(100, 7, unaligned="bf16")
    x = torch.randn(3, 100)
    assert module(x).equal(nn.functional.linear(x, module.weight, module.bias))
    assert "recipe=none" in repr(module)


def test_nothing_in_place_of_a_tensor_is_refused_without_output_of_pytorch(capfd):
    layers = nn.ModuleList([ot.Linear(64, 32), ot.FrozenLinear(64, 32)])
    with torch.no_grad():
        for layer in layers:
            with pytest.raises(TypeError, match="x is of type NoneType; allowed is torch.Tensor"):
                layer(None)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_call_without_gradients_runs_few_functions_and_one_operator(context, bias):
    module = ot.Linear(64, 32, bias=bias).eval()
    x = torch.randn(1, 64, dtype=torch.bfloat16)
    names = []
    with context():
        module(x)
        sys.setprofile(lambda frame, event, _: event == "call" and names.append(frame.f_code.co_name))
        try:
            module(x)
        finally:
            sys.setprofile(None)
        with torch.autograd.profiler.profile() as profile:
            module(x)
    assert names[:3] == ["_wrapped_call_impl", "_call_impl", "forward"] and len(names) <= 8, names
    assert [event.name for event in profile.function_events] == ["octile::linear_output"]
