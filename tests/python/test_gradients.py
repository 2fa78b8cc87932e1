"""Derivatives beyond one backward pass: second ones, transforms of torch.func, and passes that ask for some gradients."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.utils.checkpoint import checkpoint

import octile.torch as ot

ENDS = torch.tensor([2, 5])
AGAIN = r"is differentiated again .* first gradients only: .*set_fp8\(model, False\), or leave .* filter of convert"
FORWARD = r"in forward mode .* use vjp or jacrev, or compute .*set_fp8\(model, False\)"


def pair():
    """Returns a model of nn.Linear, and the same in FP8."""
    plain = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 32))
    model = copy.deepcopy(plain)
    assert len(ot.convert(model, min_dims=16).converted) == 2
    return plain, model


def layer(kind, recipe="blockwise"):
    """Returns a layer with 64 inputs as a module that takes x [5, 64] alone."""
    if kind == "linear":
        return ot.Linear(64, 32, recipe=recipe)

    class Groups(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = ot.Experts(2, 64, 32, recipe=recipe)

        def forward(self, x):
            return self.experts(x, ENDS)

    return Groups()


def watched(module, check):
    if check is not None:
        ot.sentry(module, check=check)
    return module


def distance(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


def loss_of(model):
    return lambda parameters, x: functional_call(model, parameters, (x,)).square().sum()


def state(model):
    return {name: p.detach() for name, p in model.named_parameters()}


def eager_gradients(model, x):
    parameters = dict(model.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(model(x).square().sum(), parameters.values()), strict=True))


# ---- second derivatives


def forces(model, x):
    (force,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (force.square().sum() + model(x).square().sum()).backward()


def gradient_penalty(model, x):
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    torch.autograd.grad((slope.norm() - 1).square(), list(model.parameters()))


def hessian_vector_product(model, x):
    parameters = list(model.parameters())
    first = torch.autograd.grad(model(x).square().sum(), parameters, create_graph=True)
    torch.autograd.grad(first, parameters, [torch.ones_like(p) for p in parameters])


def with_regard_to_an_earlier_layer(model, x):
    first = nn.Linear(64, 64)
    loss = model(first(x)).sum()  # dw depends on the first layer by x alone
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    torch.autograd.grad(loss + sum(slope.square().sum() for slope in slopes), first.weight)


def by_backward(model, x):
    model(x).square().sum().backward(create_graph=True)
    gradients = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    sum(g.square().sum() for g in gradients).backward()


SECOND = (forces, gradient_penalty, hessian_vector_product, with_regard_to_an_earlier_layer, by_backward)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("check", (None, "step", "call"))
@pytest.mark.parametrize("kind", ("linear", "experts"))
@pytest.mark.parametrize("second", SECOND, ids=lambda f: f.__name__)
def test_second_derivatives_are_refused_and_exist_without_fp8(second, kind, check):
    model, x = watched(layer(kind), check), torch.randn(5, 64, requires_grad=True)
    with pytest.raises(NotImplementedError, match=AGAIN):
        second(model, x)
    ot.set_fp8(model, False)
    second(model, x)


@pytest.mark.parametrize("wrap", (lambda m: m, lambda m: lambda x: checkpoint(m, x, use_reentrant=False)))
@pytest.mark.parametrize("check", (None, "call"))
@pytest.mark.parametrize("kind", ("linear", "experts"))
def test_a_graph_of_gradients_that_nobody_differentiates_changes_nothing(kind, check, wrap):
    model, x = watched(layer(kind), check), torch.randn(5, 64, requires_grad=True)
    inputs = [x, *model.parameters()]
    first = torch.autograd.grad(model(x).square().sum(), inputs)
    again = torch.autograd.grad(wrap(model)(x).square().sum(), inputs, create_graph=True)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))


def test_gradients_that_depend_on_nothing_more_are_constants():
    model, x = ot.Linear(64, 32), torch.randn(5, 64)
    (dw,) = torch.autograd.grad(model(x).sum(), model.weight, create_graph=True)
    assert not dw.requires_grad
    model.requires_grad_(False)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    assert not dx.requires_grad


def test_second_derivatives_of_compiled_models_are_refused():
    torch._dynamo.reset()
    model, x = ot.Linear(64, 32), torch.randn(5, 64, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        forces(compiled, x)


def test_experts_without_fp8_have_the_derivatives_of_a_loop():
    model, x = ot.Experts(2, 64, 32), torch.randn(5, 64, requires_grad=True)
    ot.set_fp8(model, False)

    def second(y):
        dx, dw = torch.autograd.grad(y.square().sum(), (x, model.weight), create_graph=True)
        return torch.autograd.grad(dx.square().sum() + dw.square().sum(), (x, model.weight))

    loop = torch.cat([x[:2] @ model.weight[0].t(), x[2:] @ model.weight[1].t()])
    for ours, theirs in zip(second(model(x, ENDS)), second(loop), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
    weight = model.weight.detach()
    _, ours = jvp(lambda x, w: functional_call(model, {"weight": w}, (x, ENDS)), (x, weight), (x, weight))
    torch.testing.assert_close(ours, 2 * loop, rtol=1e-4, atol=1e-4)


# ---- transforms of torch.func


def test_gradients_of_functions_are_those_of_backward():
    plain, model = pair()
    x = torch.randn(5, 64)
    ours, theirs = grad(loss_of(model))(state(model), x), grad(loss_of(plain))(state(plain), x)
    for name, expected in eager_gradients(model, x).items():
        assert ours[name].equal(expected) and distance(ours[name], theirs[name]) < 0.1
    dy = torch.randn(5, 32)
    y, pull = vjp(model, x)
    tracked = x.clone().requires_grad_()
    assert y.equal(model(x)) and pull(dy)[0].equal(torch.autograd.grad(model(tracked), tracked, dy)[0])
    assert distance(jacrev(model)(x), jacrev(plain)(x)) < 0.1


@pytest.mark.parametrize("recipe", ("blockwise", "tensorwise", "rowwise", "mxfp8", "delayed"))
@pytest.mark.parametrize("shape", ((3, 64), (3, 5, 64), (3, 2, 5, 64)))
def test_gradients_of_samples_are_those_of_a_loop(shape, recipe):
    model, x = ot.Linear(64, 32, recipe=recipe), torch.randn(shape)
    each = vmap(grad(loss_of(model)), in_dims=(None, 0))(state(model), x)
    loop = [eager_gradients(model, sample) for sample in x]
    for name, gradients in each.items():
        expected = torch.stack([one[name] for one in loop])
        # With one scale for a tensor, a batch has one scale.
        same = recipe not in ("tensorwise", "delayed")
        assert gradients.equal(expected) if same else distance(gradients, expected) < 0.1


def test_gradients_of_samples_of_experts_are_those_of_a_loop():
    model, x = ot.Experts(2, 64, 32), torch.randn(3, 5, 64)
    ends = torch.tensor([[2, 5], [0, 5], [3, 4]])

    def loss(weight, x, ends):
        return functional_call(model, {"weight": weight}, (x, ends))[:4].square().sum()

    gradients = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, 0, 0))(model.weight.detach(), x, ends)
    for index in range(3):
        tracked = x[index].clone().requires_grad_()
        expected = torch.autograd.grad(loss(model.weight, tracked, ends[index]), (model.weight, tracked))
        assert gradients[0][index].equal(expected[0]) and gradients[1][index, :4].equal(expected[1][:4])


def test_a_gradient_of_a_batch_is_one_of_all_tokens():
    model, x = ot.Linear(64, 32), torch.randn(5, 3, 64)
    folded = grad(loss_of(model))(state(model), x.movedim(1, 0))
    for batched in (
        grad(lambda p: vmap(lambda x: loss_of(model)(p, x), in_dims=1)(x).sum())(state(model)),
        dict(zip(state(model), torch.autograd.grad(vmap(model, 1)(x).square().sum(), model.parameters()), strict=True)),
    ):
        assert all(batched[name].equal(folded[name]) for name in folded)


def test_batches_of_inputs_take_one_call(monkeypatch):
    model, x, calls = ot.Linear(64, 32), torch.randn(3, 5, 64), []
    forward = ot.functional.ops.linear_forward

    class Counting:
        linear_backward = ot.functional.ops.linear_backward

        def linear_forward(self, *arguments):
            calls.append(arguments[0].shape)
            return forward(*arguments)

    monkeypatch.setattr(ot.functional, "ops", Counting())
    y = vmap(model)(x)
    dx = vmap(grad(lambda x: model(x).square().sum()))(x)
    assert calls == [(3, 5, 64)] * 2
    assert y.equal(model(x)) and dx.equal(grad(lambda x: model(x).square().sum())(x))


def test_ensembles_of_weights_are_a_loop():
    models, x = [pair()[1] for _ in range(3)], torch.randn(5, 64)
    parameters, _ = stack_module_state(models)
    y = vmap(lambda p, x: functional_call(models[0], p, (x,)), in_dims=(0, None))(parameters, x)
    assert y.equal(torch.stack([model(x) for model in models]))
    bias = torch.randn(3, 32)
    weight = models[0][2].weight
    y = vmap(lambda b: ot.linear(y[0] @ torch.ones(32, 128), weight, b))(bias)
    assert y.shape == (3, 5, 32) and (y[0] - bias[0]).allclose(y[1] - bias[1], atol=1e-5)


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("kind", ("linear", "experts"))
def test_batches_of_gradients(kind):
    model, x, dy = layer(kind), torch.randn(5, 64, requires_grad=True), torch.randn(4, 5, 32)
    inputs = [x, *model.parameters()]
    together = torch.autograd.grad(model(x), inputs, dy, is_grads_batched=True)
    loop = [torch.autograd.grad(model(x), inputs, one) for one in dy]
    for index, gradients in enumerate(together):
        assert gradients.equal(torch.stack([one[index] for one in loop]))


def dual(model, x):
    with forward_ad.dual_level():
        return model(forward_ad.make_dual(x, x))


def dual_without_gradients(model, x):
    with torch.no_grad():
        return dual(model, x)


NOT_FIRST = {
    "jvp": (FORWARD, lambda model, x: jvp(model, (x,), (x,))),
    "jacfwd": (FORWARD, lambda model, x: jacfwd(model)(x)),
    "forward_ad": (FORWARD, dual),
    "forward_ad without gradients": (FORWARD, dual_without_gradients),
    "hessian": (FORWARD, lambda model, x: hessian(lambda x: model(x).square().sum())(x)),
    "grad of grad": (AGAIN, lambda model, x: grad(lambda x: grad(lambda x: model(x).square().sum())(x).sum())(x)),
    "jacrev of jacrev": (AGAIN, lambda model, x: jacrev(jacrev(lambda x: model(x).square().sum()))(x)),
    "jacfwd of a gradient": (AGAIN, lambda model, x: jvp_of_gradient(model, x)),
    "functional.hvp": (AGAIN, lambda model, x: torch.autograd.functional.hvp(lambda x: model(x).exp().sum(), x, x)),
}


def jvp_of_gradient(model, x):
    _, pull = vjp(model, x)
    return jvp(lambda dy: pull(dy)[0], (torch.ones(5, 32),), (torch.ones(5, 32),))


@pytest.mark.parametrize("kind", ("linear", "experts"))
@pytest.mark.parametrize("what", NOT_FIRST)
def test_other_derivatives_are_refused_and_exist_without_fp8(what, kind):
    sentence, derivative = NOT_FIRST[what]
    model, x = watched(layer(kind), "call" if "forward_ad" in what else None), torch.randn(5, 64)
    with pytest.raises(NotImplementedError, match=sentence):
        derivative(model, x)
    ot.set_fp8(model, False)
    derivative(model, x)


def test_tensors_without_tangents_are_no_concern_of_forward_mode():
    model, x = ot.Linear(64, 32), torch.randn(5, 64)
    with forward_ad.dual_level():
        assert model(x).equal(model(x))


def test_transforms_are_not_compiled_and_not_wrong():
    torch._dynamo.reset()
    model, x = ot.Linear(64, 32), torch.randn(3, 64)

    def each(parameters, x):
        return vmap(grad(loss_of(model)), in_dims=(None, 0))(parameters, x)

    expected = each(state(model), x)
    compiled = torch.compile(each, backend="aot_eager")(state(model), x)
    assert all(compiled[name].equal(expected[name]) for name in expected)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="transforms of torch.func are not compiled"):
        torch.compile(each, fullgraph=True, backend="aot_eager")(state(model), x)


def test_sentries_under_transforms():
    model, x = ot.Linear(64, 32), torch.randn(3, 64)
    watch = ot.sentry(model)
    each = vmap(grad(loss_of(model)), in_dims=(None, 0))
    each(state(model), x)
    assert watch.step().item() == 0
    x[1, 5] = torch.inf
    each(state(model), x)
    with pytest.warns(UserWarning, match="were not finite"):
        assert watch.step().item() == 1
    watch.remove()
    ot.sentry(model, check="call")
    with pytest.raises(RuntimeError, match="and torch.func cannot; use check='step'"):
        each(state(model), x)


def test_batches_of_no_sample():
    with pytest.raises(ValueError, match="the batch of torch.vmap is 0; allowed are 1 sample and more"):
        vmap(grad(loss_of(ot.Linear(64, 32))), in_dims=(None, 0))(state(ot.Linear(64, 32)), torch.randn(0, 64))


# ---- which gradients a backward pass asks for


def ask_for_x(y, x, weight):
    return torch.autograd.grad(y, x)


def ask_for_x_on_the_way(y, x, weight):
    torch.autograd.backward(y, inputs=[x])


def ask_for_no_weight(y, x, weight):
    (dx,) = torch.autograd.grad(y, x, create_graph=True)
    assert dx.requires_grad


def ask_for_the_weight(y, x, weight):
    torch.autograd.backward(y, inputs=[weight])
    assert x.grad is None


def ask_for_all(y, x, weight):
    y.backward()


ASKED = {ask_for_x: 0, ask_for_x_on_the_way: 0, ask_for_no_weight: 0, ask_for_the_weight: 1, ask_for_all: 1}
WAYS = {
    "eager": lambda model: model,
    "checkpoint": lambda model: lambda x: checkpoint(model, x, use_reentrant=False),
    "behind a layer": lambda model: lambda x: model(x * 1),
}


@pytest.mark.parametrize("check", (None, "call"))
@pytest.mark.parametrize("kind", ("linear", "experts"))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ask", ASKED, ids=lambda f: f.__name__)
def test_main_grad_gets_what_is_asked_for_once(ask, way, kind, check):
    model, x = watched(layer(kind), check), torch.randn(5, 64, requires_grad=True)
    weight = next(model.parameters())
    (dw,) = torch.autograd.grad(model(x).square().sum(), weight)
    weight.main_grad = torch.zeros_like(weight)
    ask(WAYS[way](model)(x).square().sum(), x, weight)
    assert weight.grad is None and weight.main_grad.equal(dw * ASKED[ask])


def test_a_gradient_that_is_returned_is_not_added():
    model, x = ot.Linear(64, 32), torch.randn(5, 64, requires_grad=True)
    wanted = torch.autograd.grad(model(x).square().sum(), (x, model.weight))
    model.weight.main_grad = torch.zeros(32, 64)
    model.weight.grad_added_to_main_grad = False
    ours = torch.autograd.grad(model(x).square().sum(), (x, model.weight))
    assert all(a.equal(b) for a, b in zip(ours, wanted, strict=True))
    assert not model.weight.grad_added_to_main_grad and not model.weight.main_grad.any()


def test_no_gradient_is_none():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return None

    model, x = ot.Linear(64, 32), torch.randn(5, 64, requires_grad=True)
    Nothing.apply(model(x)).sum().backward()
    assert x.grad is None and model.weight.grad is None and model.bias.grad is None


BAD = [
    ([1.0], TypeError, "main_grad is of type list; allowed is torch.Tensor"),
    (torch.zeros(32, 64).half(), ValueError, "main_grad.dtype is torch.float16; allowed are torch.bfloat16 and"),
    (torch.zeros(32, 64).double(), ValueError, "main_grad.dtype is torch.float64"),
    (torch.zeros(32, 64, device="meta"), ValueError, "main_grad.device is 'meta'; allowed is that of the weight"),
    (torch.zeros(64 * 32), ValueError, "main_grad is (2048,); allowed is contiguous (32, 64)"),
    (torch.zeros(64, 32).t(), ValueError, "main_grad is (32, 64); allowed is contiguous (32, 64)"),
]


@pytest.mark.parametrize("main_grad, error, sentence", BAD, ids=[sentence for _, _, sentence in BAD])
def test_a_main_grad_that_takes_no_gradient_is_named(main_grad, error, sentence):
    model = ot.Linear(64, 32)
    model.weight.main_grad = main_grad
    with pytest.raises(error) as raised:
        model(torch.randn(5, 64)).sum().backward()
    assert sentence in str(raised.value)
