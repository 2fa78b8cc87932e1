"""The sentry: steps whose products are not finite are repeated without FP8 or skipped, said once, and counted."""

import copy
import math
import warnings

import pytest
import torch
from reference import ALL_RECIPES
from torch import nn
from torch.utils.checkpoint import checkpoint

import octile.torch as ot
from octile.torch.nonfinite import Counts


class Inject(nn.Module):
    """Puts a value into one element of an activation, forward or backward, as often as told."""

    def __init__(self):
        super().__init__()
        self.forward_times = self.backward_times = 0
        self.value = math.nan

    def forward(self, x):
        if self.forward_times > 0:
            self.forward_times -= 1
            x = x.clone()
            x[3, 5] = self.value
        if x.requires_grad:
            x.register_hook(self._backward)
        return x

    def _backward(self, gradient):
        if self.backward_times > 0:
            self.backward_times -= 1
            gradient = gradient.clone()
            gradient[2, 1] = self.value
        return gradient


def model_of(recipe="blockwise", seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        ot.Linear(64, 128, recipe=recipe), nn.GELU(), Inject(), ot.Linear(128, 32, recipe=recipe), Inject()
    )


def batch(step, tokens=40):
    x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(step))
    return x, x[:, :32].roll(1, 1)


def closure_of(model, optimizer, step):
    def closure():
        x, target = batch(step)
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        return loss

    return closure


def plain_gradients(model, step):
    """Returns the gradients of a step without FP8."""
    other = copy.deepcopy(model)
    ot.set_fp8(other, False)
    closure_of(other, torch.optim.SGD(other.parameters()), step)()
    return [p.grad for p in other.parameters()]


def none_but(**counts):
    names = {"first": "0", "second": "3"}
    wanted = {"0": Counts(0, 0, 0), "3": Counts(0, 0, 0)}
    return wanted | {names[name]: Counts(*value) for name, value in counts.items()}


@pytest.mark.parametrize("recipe", ALL_RECIPES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_activation_makes_its_step_bf16_and_training_goes_on(recipe, value):
    model, undisturbed = model_of(recipe), model_of(recipe)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watch, other = ot.sentry(model), torch.optim.SGD(undisturbed.parameters(), lr=0.05)
    model[2].value = value
    for step in range(6):
        bad = step == 3
        model[2].forward_times = int(bad)
        if bad:
            with pytest.warns(UserWarning, match="products of 2 layers, the first of them '0', were not finite"):
                loss = watch.run(closure_of(model, optimizer, step))
            assert all(p.grad.equal(g) for p, g in zip(model.parameters(), plain_gradients(model, step), strict=True))
        else:
            loss = watch.run(closure_of(model, optimizer, step))
        assert loss.isfinite() and not watch.found_nonfinite
        optimizer.step()
        closure_of(undisturbed, other, step)()
        other.step()
        assert all(layer.fp8 for layer in (model[0], model[3]))
    assert watch.repeated == 1 and watch.steps == 6
    # The second layer's products are of the bad activation; the first layer's gradients are of its gradient.
    assert watch.counts["3"].output == watch.counts["3"].weight_gradient == 1
    assert all(p.isfinite().all() for p in model.parameters())
    final = [closure_of(m, o, 99)().item() for m, o in ((model, optimizer), (undisturbed, other))]
    assert abs(final[0] / final[1] - 1) < 0.02


def test_without_faults_nothing_changes():
    model, other = model_of(), model_of()
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters())
    closure_of(other, torch.optim.SGD(other.parameters()), 0)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.run(closure_of(model, optimizer, 0))
    assert all(p.grad.equal(q.grad) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    assert watch.counts == none_but() and watch.repeated == 0 and watch.found_nonfinite == 0


def test_a_bad_gradient_is_found_where_it_is():
    model = model_of()
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters())
    model[4].backward_times = 1
    with pytest.warns(UserWarning, match="products of 2 layers"):
        watch.run(closure_of(model, optimizer, 0))
    assert not watch.found_nonfinite and all(p.grad.isfinite().all() for p in model.parameters())
    # x of the first layer needs no gradient.
    assert watch.counts == none_but(first=(0, 0, 1), second=(0, 1, 1))


def test_a_value_that_stays_bad_is_said_to_be():
    model = model_of()
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    model[2].forward_times = 2
    with pytest.warns(UserWarning):
        loss = watch.run(closure_of(model, optimizer, 0))
    assert loss.isnan() and watch.found_nonfinite == 1 and watch.repeated == 1
    watch.run(closure_of(model, optimizer, 1))
    assert watch.found_nonfinite == 0
    assert all(p.equal(q) for p, q in zip(model.parameters(), before, strict=True))


def test_it_is_said_once_and_counted_always():
    model = model_of()
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters())
    with pytest.warns(UserWarning) as said:
        for step in range(5):
            model[2].forward_times = int(step % 2 == 0)
            watch.run(closure_of(model, optimizer, step))
    assert len(said) == 1 and watch.repeated == 3 and watch.counts["3"].output == 3


def test_fused_optimizers_skip_on_the_device():
    model = model_of()
    optimizer, watch = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), ot.sentry(model)
    optimizer.found_inf = watch.found_nonfinite
    optimizer.grad_scale = None
    for step in range(4):
        before = [p.detach().clone() for p in model.parameters()]
        model[2].forward_times = int(step == 2)
        closure_of(model, optimizer, step)()
        if step == 2:
            with pytest.warns(UserWarning):
                found = watch.step()
        else:
            found = watch.step()
        assert found is watch.found_nonfinite and found == (step == 2)
        optimizer.step()
        same = [p.equal(q) for p, q in zip(model.parameters(), before, strict=True)]
        assert all(same) if step == 2 else not any(same)
    assert all(p.isfinite().all() for p in model.parameters())


def test_steps_after_a_noticed_one_retreat():
    model = model_of()
    watch, optimizer = ot.sentry(model, retreat=2), torch.optim.SGD(model.parameters(), lr=0.0)
    schedule, plain = ot.Schedule(model), []
    for step in range(6):
        schedule.step(step)  # which does not end a retreat
        model[2].forward_times = int(step == 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            closure_of(model, optimizer, step)()
            gradients = [p.grad for p in model.parameters()]
            watch.step()
        model[2].forward_times = 0
        plain.append(all(a.equal(b) for a, b in zip(gradients, plain_gradients(model, step), strict=True)))
    assert plain == [False, False, True, True, False, False]


def test_a_step_without_fp8_is_watched_by_its_gradients():
    model = model_of()
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters())
    ot.set_fp8(model, False)
    closure_of(model, optimizer, 0)()
    assert watch.step() == 0
    model[2].forward_times = 1
    closure_of(model, optimizer, 1)()
    with pytest.warns(UserWarning, match="octile: gradients were not finite by step 2"):
        assert watch.step() == 1


def test_a_call_of_few_tokens_is_watched_by_its_gradients():
    model = model_of()
    model[3].least_tokens = (100, 100, 100)
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters())
    closure_of(model, optimizer, 0)()
    assert watch.step() == 0
    model[4].backward_times = 1  # of the second layer's output
    model[3].bias.requires_grad_(False)
    with pytest.warns(UserWarning):
        closure_of(model, optimizer, 1)()
        assert watch.step() == 1
    assert watch.counts["3"] == Counts(0, 0, 0)


@pytest.mark.parametrize("main_grad", [False, True])
def test_each_call_is_computed_again_at_once(main_grad):
    """Words that are set by hand stand for products that are not finite though their operands are."""
    model, other = model_of(), model_of()
    watch, optimizer = ot.sentry(model, check="call"), torch.optim.SGD(model.parameters())
    if main_grad:
        for layer in (model[0], model[3]):
            layer.weight.main_grad = torch.ones_like(layer.weight)
    x, target = batch(0)
    layer = model[3]
    real = layer._watch._failed
    failed = {0}

    def fail(product):
        layer._watch.words[product] = int(product in failed)
        return real(product)

    layer._watch._failed = fail
    with pytest.warns(UserWarning, match="products of 1 layers, the first of them '3', were not finite by step 1"):
        y = model(x)
    hidden = other[1](other[0](x))
    assert y.equal(nn.functional.linear(hidden, other[3].weight, other[3].bias))
    failed.clear()
    y = model(x)
    failed.update({1, 2})
    (y - target).square().mean().backward()
    (other(x) - target).square().mean().backward()
    dw = layer.weight.main_grad - 1 if main_grad else layer.weight.grad
    assert (dw - other[3].weight.grad).norm() < 0.05 * other[3].weight.grad.norm()
    assert not main_grad or (layer.weight.grad is None and layer.weight.main_grad.dtype == torch.float32)
    assert model[0].bias.grad.isfinite().all()
    assert watch.counts == none_but(second=(1, 1, 1)) and watch.step() == 0
    optimizer.zero_grad()


def test_each_call_says_what_stays_bad():
    model = model_of()
    watch, optimizer = ot.sentry(model, check="call"), torch.optim.SGD(model.parameters())
    model[2].forward_times = 1
    with pytest.warns(UserWarning, match="products of 1 layers, the first of them '3', were not finite by step 1"):
        closure_of(model, optimizer, 0)()
    assert watch.step() == 1 and watch.counts["3"].output == 1
    closure_of(model, optimizer, 1)()
    assert watch.step() == 0


@pytest.mark.filterwarnings("ignore:octile. products of 1 layers")
@pytest.mark.parametrize("bad_first", [True, False])
def test_a_result_that_stays_bad_counts_for_its_step_and_its_call_alone(bad_first):
    model = nn.Sequential(nn.Linear(64, 64)).bfloat16()
    ot.convert(model, min_dims=16)
    good, bad = torch.randn(6, 64).bfloat16(), torch.full((6, 64), float("inf")).bfloat16()
    wanted = model(good).detach()
    optimizer, watch = torch.optim.AdamW(model.parameters(), fused=True), ot.sentry(model, check="call")
    optimizer.found_inf, optimizer.grad_scale = watch.found_nonfinite, None
    for x in (bad, good) if bad_first else (good, bad):
        y = model(x)
        y.float().sum().backward()
        assert x is bad or torch.equal(y, wanted)
    assert watch.counts["0"].output == 1
    assert watch.step() == 1
    optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
    model.zero_grad()
    model(good).float().sum().backward()
    assert watch.step() == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_accumulation_and_checkpointing(reentrant):
    model = model_of()
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters())

    def closure():
        optimizer.zero_grad()
        for step in range(3):
            x, target = batch(step, 17 + step)
            (checkpoint(model, x.requires_grad_(), use_reentrant=reentrant) - target).square().mean().backward()

    closure()
    wanted = [p.grad.clone() for p in model.parameters()]
    watch.run(closure)
    assert all(p.grad.equal(q) for p, q in zip(model.parameters(), wanted, strict=True))
    model[2].forward_times = 2  # forward and recomputation of the first microbatch
    with pytest.warns(UserWarning):
        watch.run(closure)
    assert watch.repeated == 1 and not watch.found_nonfinite


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("recipe", ["blockwise", ot.Recipe("delayed", warmup=1)])
def test_compiled_models_are_watched(backend, recipe):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(ot.Linear(64, 128, recipe=recipe), nn.GELU(), ot.Linear(128, 32, recipe=recipe))
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters(), lr=0.01)
    for step, tokens in enumerate((40, 77, 33)):
        x, target = batch(step, tokens)
        bad = x.clone()
        bad[3, 5] = math.nan
        inputs = [x, bad] if step == 1 else [x]

        def closure(inputs=inputs, target=target):
            optimizer.zero_grad()
            (compiled(inputs.pop()) - target).square().mean().backward()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            watch.run(closure)
        assert watch.repeated == int(step >= 1) and not watch.found_nonfinite
        optimizer.step()
    assert watch.counts["0"].output == 1


def test_copies_have_no_sentry_and_removal_ends_it():
    model = model_of()
    watch = ot.sentry(model)
    other = copy.deepcopy(model)
    assert other[0]._watch is None and model[0]._watch is not None
    assert list(model.state_dict()) == list(other.state_dict())
    ot.sentry(other)
    with pytest.raises(ValueError, match="model is 'Sequential'; allowed is a model without a sentry; call"):
        ot.sentry(model)
    watch.remove()
    model[2].forward_times = 1
    model(batch(0)[0])
    assert watch.step() == 0 and ot.sentry(model).counts == none_but()


def test_bad_arguments_are_named():
    model = model_of()
    for arguments, sentence in (
        (dict(check="layer"), "check is 'layer'; allowed are 'step' and 'call'"),
        (dict(retreat=-1), "retreat is -1; allowed are integers of at least 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ot.sentry(model, **arguments)
    with pytest.raises(
        ValueError, match="model is 'Sequential'; allowed is a model with octile.torch.Linear or Experts in it"
    ):
        ot.sentry(nn.Sequential(nn.Linear(64, 32)))
    with pytest.raises(ValueError, match="0.weight.device is 'meta'; allowed are devices with memory"):
        ot.sentry(nn.Sequential(ot.Linear(64, 32, device="meta")))
    ot.sentry(model, check="call")
    with pytest.raises(Exception, match="a sentry with check='call' reads each product on the host"):
        torch.compile(model, fullgraph=True, backend="eager")(batch(0)[0])


def test_operators_name_bad_words():
    x, weight = torch.randn(4, 64), torch.randn(32, 64)
    for bad in (torch.zeros(2, dtype=torch.int32), torch.zeros(3)):
        with pytest.raises(ValueError, match=rf"sentry has {bad.numel()} elements; allowed is contiguous int32 \[3\]"):
            torch.ops.octile.linear_forward(x, weight, None, 0, False, False, None, bad)
