"""Weights that are held in FP8 with masters in the optimizer: bits, steps, memory and checkpoints."""

import copy
import io

import pytest
import torch
from held import Ordinary, adamw, assert_equal, backward, batch, held, masters, model_of, trained
from torch import nn

import octile.torch as ot
from octile.torch import held_weight
from octile.torch.primary_state import halves_of, joined

RECIPES = held_weight.RECIPES
OPS = torch.ops.octile


# ---- bits


@pytest.mark.parametrize(
    "recipe, dtype", [*((recipe, torch.bfloat16) for recipe in RECIPES), ("blockwise", torch.float32)]
)
def test_training_has_the_bits_of_ordinary_layers_with_rounded_masters(recipe, dtype):
    model, optimizer, primary = held(recipe=recipe, dtype=dtype)
    ordinary = Ordinary(recipe=recipe, dtype=dtype)
    for seed in range(2):
        assert_equal(backward(model, seed, dtype), backward(ordinary.model, seed, dtype))
        optimizer.step()
        optimizer.zero_grad()
        ordinary.step()
    assert_equal(masters(model), ordinary.masters[::2])
    assert list(primary.masters) == ["0.weight", "2.weight"]
    with torch.no_grad():
        assert model(batch(9, dtype)).equal(ordinary.model(batch(9, dtype)))
    weight, kind = model[0].weight, ot.Recipe(recipe.removesuffix(":f32"), "f32" if ":" in recipe else "pow2").weight
    q = ot.quantize(ordinary.model[0].weight.detach(), granularity=kind.granularity, scales=kind.scales)
    assert weight.codes.view(torch.uint8).equal(q.codes.view(torch.uint8)) and weight.scales.equal(q.scales)
    assert weight.dequantize(torch.float32).equal(q.dequantize())


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: adamw(p, foreach=False),
        lambda p: adamw(p, foreach=True),
        lambda p: adamw(p, fused=True),
        lambda p: torch.optim.SGD([{"params": [w]} for w in p], lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adafactor(p),
    ],
)
def test_optimizers_of_torch_take_masters(optimizer):
    model, made, _ = held(optimizer)
    ordinary = Ordinary(optimizer)
    before = list(model.parameters())
    for seed in range(2):
        backward(model, seed), backward(ordinary.model, seed)
        made.step()
        assert model[0].weight.grad is not None  # as PyTorch leaves it
        made.zero_grad()
        ordinary.step()
    assert_equal(masters(model), ordinary.masters[::2])
    grouped = [p for group in made.param_groups for p in group["params"]]
    assert all(a is b is c for a, b, c in zip(before, grouped, model.parameters(), strict=True))
    assert all(type(p) is not held_weight.HeldWeight or p in made.state for p in grouped)


def test_clipping_accumulation_scaler_and_scheduler():
    model, optimizer, _ = held()
    ordinary = Ordinary()
    parts = []
    for one, parameters, step in ((model, None, optimizer), (ordinary.model, None, ordinary.optimizer)):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        schedule = torch.optim.lr_scheduler.StepLR(step, 1, 0.5)
        for seed in range(2):
            for microbatch in range(2):
                scaler.scale(one(batch(4 * seed + microbatch)).float().square().mean()).backward()
            if one is model:
                scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            else:
                for p in one.parameters():
                    p.grad.mul_(0.25)
                norm = nn.utils.clip_grad_norm_(one.parameters(), 0.01)
                ordinary.step()
            schedule.step()
        parts.append(norm)
    assert parts[0].equal(parts[1]) and optimizer.param_groups[0]["lr"] == 1e-2 / 4
    assert_equal(masters(model), ordinary.masters[::2])


def test_a_closure_sees_weights_in_the_groups():
    model, optimizer, _ = held(lambda p: torch.optim.LBFGS(p, max_iter=3))
    losses = []

    def closure():
        optimizer.zero_grad()
        assert optimizer.param_groups[0]["params"][0] is model[0].weight
        loss = model(batch(0)).float().square().mean()
        loss.backward()
        losses.append(loss.item())
        return loss

    optimizer.step(closure)
    optimizer.step(closure=closure)
    assert len(losses) > 3 and losses[-1] < losses[0]
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


@pytest.mark.parametrize("given", [True, False])
def test_optimizers_without_hooks_are_called_by_hand(given):
    class Descent:
        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters)}]

        def step(self):
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-0.1)

    model = model_of()
    optimizer = Descent(model.parameters()) if given else None
    primary = ot.primary_fp8(model, optimizer)
    optimizer = optimizer or Descent(primary.masters.values())
    ordinary = Ordinary(lambda p: torch.optim.SGD([q for q in p if q.dim() == 2], lr=0.1))
    for seed in range(2):
        backward(model, seed), backward(ordinary.model, seed)
        primary.begin_step()
        optimizer.step()
        primary.end_step()
        ordinary.step()
        for p in (*model.parameters(), *ordinary.model.parameters()):
            p.grad = None
        with torch.no_grad():
            model[0].bias.copy_(ordinary.model[0].bias)
    assert_equal(masters(model), ordinary.masters[::2])
    assert all(master.grad is None for master in primary.masters.values())


def test_main_grad_is_the_masters_gradient():
    model, optimizer, _ = held()
    ordinary = Ordinary()
    for weight in (model[0].weight, model[2].weight):
        weight.main_grad = torch.zeros(weight.shape)
    model[0].weight.grad_added_to_main_grad = False
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad for p in optimizer.param_groups[0]["params"]]))
    model(batch(0)).float().square().mean().backward()
    assert not model[0].weight.grad.any() and model[2].weight.grad is None
    ot.set_fp8(model, False)  # these passes know no main_grad
    model(batch(1)).float().square().mean().backward()
    plain = [weight.grad.float() for weight in (model[0].weight, model[2].weight)]
    optimizer.step()
    assert seen[0][2].equal(model[2].weight.main_grad + plain[1])
    for p in model.parameters():
        p.grad = None
    optimizer.step()
    assert seen[1][0] is model[0].weight.main_grad  # no copy
    backward(ordinary.model, 0)
    assert model[2].weight.main_grad.bfloat16().equal(ordinary.model[2].weight.grad)


def test_inputs_are_shared_and_weights_never_quantised_by_passes():
    model, _, _ = held()
    shared = nn.ModuleList([copy.deepcopy(model[0]) for _ in range(2)])
    count, made = OPS.weight_quantizations(), OPS.weight_copies_made()
    kept = []
    for _ in range(2):
        x = batch(0) * 1
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = shared[0](x) + shared[1](x)
        y.sum().backward()
    assert (OPS.weight_quantizations(), OPS.weight_copies_made()) == (count, made)
    inputs = [t.data_ptr() for t in kept if t.dtype == torch.float8_e4m3fn]
    assert len(inputs) == 4 and inputs[2] == inputs[3]  # from the second meeting on


# ---- memory


@pytest.mark.parametrize("form, optimizer_bytes", [("fp32", 12), ("bf16+16", 10)])
def test_bytes_of_a_parameter(form, optimizer_bytes):
    model = nn.Sequential(nn.Linear(512, 512, bias=False)).bfloat16()
    ot.convert(model, min_dims=16)
    optimizer = adamw(model.parameters())
    ot.primary_fp8(model, optimizer, master=form)
    model(torch.randn(4, 512, dtype=torch.bfloat16)).sum().backward()
    weight = model[0].weight
    assert weight.codes.nbytes + weight.scales.nbytes == 512 * 512 + 4 * 16
    assert weight.untyped_storage().nbytes() == 0 or weight.data_ptr() == 0
    assert weight.grad.nbytes == 2 * 512 * 512
    peak = []
    optimizer.register_step_pre_hook(lambda *_: peak.append(optimizer.param_groups[0]["params"][0].grad.nbytes))
    optimizer.step()
    assert peak == [4 * 512 * 512] and weight.master.grad is None  # gone behind the step
    held_by_step = weight.master.nbytes + sum(t.nbytes for t in optimizer.state[weight].values() if t.dim())
    assert held_by_step == 12 * 512 * 512
    assert model.state_dict()["0.weight"].nbytes == 2 * 512 * 512
    saved = sum(t.nbytes for t in optimizer.state_dict()["state"][0].values())
    assert optimizer_bytes * 512 * 512 <= saved < (optimizer_bytes + 0.01) * 512 * 512


# ---- checkpoints


@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("form", ["fp32", "bf16+16"])
def test_resumed_runs_go_on_bit_for_bit(form, model_first):
    model, optimizer = trained(form)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    given = copy.deepcopy(state)
    fresh, its, _ = held(master=form)
    with torch.no_grad():
        fresh[0].weight.copy_(torch.randn(272, 144))
    for load in (fresh.load_state_dict, its.load_state_dict)[:: 1 if model_first else -1]:
        load(state["model" if load == fresh.load_state_dict else "optimizer"])
    assert_equal(masters(fresh), masters(model))
    for seed in range(2, 4):
        assert_equal(backward(fresh, seed), backward(model, seed))
        for one in (optimizer, its):
            one.step()
            one.zero_grad()
    assert_equal(masters(fresh), masters(model))
    assert its.state[fresh[0].weight]["exp_avg"].equal(optimizer.state[model[0].weight]["exp_avg"])
    assert its.state[fresh[0].weight]["exp_avg"].dtype == torch.float32
    assert state["optimizer"]["state"][0].keys() == given["optimizer"]["state"][0].keys()


def test_halves_make_every_float32():
    upper = torch.tensor([0, 1, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x8000, 0xC001, 0xFF7F], dtype=torch.int64)
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int64)
    bits = (upper[:, None] << 16 | lower).where(~((upper[:, None] & 0x7FFF == 0x7F80) & (lower != 0)), 0)
    master = bits.to(torch.uint32).view(torch.float32)
    halves = halves_of(master)
    assert halves["master_bits"].dtype == torch.int16 and 0 < len(halves["master_ties"]) < len(upper)
    nearest = master.bfloat16()
    assert joined(nearest, halves).view(torch.int32).equal(master.view(torch.int32))
    nearest[0, 0] = 1
    assert joined(nearest, halves) is None


def test_halves_of_other_weights_are_refused_by_the_step():
    model, optimizer = trained("bf16+16")
    fresh, its, _ = held(master="bf16+16")
    its.load_state_dict(optimizer.state_dict())
    backward(fresh, 0)
    with pytest.raises(
        ValueError, match="master_bits of the optimizer's state is 'of other values of 2 weights'; allow"
    ):
        its.step()
    fresh.load_state_dict(model.state_dict())
    its.step()
    assert its.param_groups[0]["params"][0] is fresh[0].weight
    state = optimizer.state_dict()
    state["state"][0]["master_bits"] = torch.zeros(2, 2, dtype=torch.int16)
    with pytest.raises(ValueError, match=r"master_bits of the optimizer's state is \(2, 2\); allowed is \(272, 144\)"):
        its.load_state_dict(state)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        its.load_state_dict(state | {"param_groups": []})
    assert its.param_groups[0]["params"][0] is fresh[0].weight


def test_checkpoints_are_those_of_nn_linear():
    plain = nn.Sequential(nn.Linear(144, 272), nn.GELU(), nn.Linear(272, 160, bias=False)).bfloat16()
    model, _ = trained("fp32")
    state = model.state_dict()
    assert list(state) == list(plain.state_dict()) and all(type(t) is torch.Tensor for t in state.values())
    assert state["0.weight"].equal(model[0].weight.master.bfloat16())
    plain.load_state_dict(state, strict=True)
    for assign in (False, True):
        fresh, _, _ = held()
        weight = fresh[0].weight
        fresh.load_state_dict(plain.state_dict(), strict=True, assign=assign)
        assert fresh[0].weight is weight and fresh(batch(0)).equal(model(batch(0)))
        assert weight.master.equal(state["0.weight"].float())
    loaded = masters(model)
    model.load_state_dict(state)  # its own values: the masters stay as exact as they are
    assert_equal(masters(model), loaded)
    exact, its, _ = held(checkpoint=torch.float32)
    exact.load_state_dict({name: value.float() + 1e-6 for name, value in state.items()})
    assert exact.state_dict()["0.weight"].equal(state["0.weight"].float() + 1e-6)
    before = model_of()
    old = adamw(before.parameters())
    backward(before, 0)
    old.step()
    its.load_state_dict(old.state_dict())  # of a run in BF16: no masters in it
    assert its.state[exact[0].weight]["exp_avg"].equal(old.state[before[0].weight]["exp_avg"].float())


def test_an_optimizer_that_has_begun():
    model, ordinary = model_of(), Ordinary()
    optimizer = adamw(model.parameters(), fused=True)
    backward(model, 0)
    optimizer.step()
    optimizer.zero_grad()
    primary = ot.primary_fp8(model, optimizer)
    assert ot.primary_fp8(model, optimizer, master="bf16+16") is primary and primary.master == "bf16+16"
    state = optimizer.state[model[0].weight]
    assert state["exp_avg"].dtype == torch.float32 and state["step"] == 1
    backward(model, 1)
    optimizer.step()
    assert state["step"] == 2 and len(optimizer._optimizer_step_pre_hooks) == 1
    assert ordinary.model(batch(0)).ne(model(batch(0))).any()
