"""Weights that are held in FP8 with masters in the optimizer: bits, steps, checkpoints, what PyTorch does to tensors."""

import copy
import io
import pickle

import octile.torch as ot
import pytest
import torch
from octile.torch import primary_weight
from octile.torch.primary_state import halves_of, joined
from torch import nn
from torch.utils.checkpoint import checkpoint

RECIPES = primary_weight.RECIPES
OPS = torch.ops.octile


def model_of(recipe="blockwise", dtype=torch.bfloat16):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(144, 272), nn.GELU(), nn.Linear(272, 160, bias=False)).to(dtype)
    ot.convert(model, recipe, min_dims=16)
    return model


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, lr=1e-2, **options)


def held(optimizer=adamw, recipe="blockwise", dtype=torch.bfloat16, **options):
    model = model_of(recipe, dtype)
    made = optimizer(model.parameters())
    return model, made, ot.primary_fp8(model, made, **options)


def batch(seed, dtype=torch.bfloat16):
    return torch.randn(9, 144, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def backward(model, seed, dtype=torch.bfloat16):
    x = batch(seed, dtype)
    y = model(x)
    y.float().square().mean().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


class Ordinary:
    """The same training by hand: an ordinary layer, whose weights are float32 masters rounded to their dtype."""

    def __init__(self, optimizer=adamw, recipe="blockwise", dtype=torch.bfloat16):
        self.model = model_of(recipe, dtype)
        self.masters = [p.detach().float() if p.dim() == 2 else p for p in self.model.parameters()]
        self.optimizer = optimizer(self.masters)

    def step(self):
        for p, master in zip(self.model.parameters(), self.masters, strict=True):
            if master is not p:
                master.grad, p.grad = p.grad.float(), None
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for p, master in zip(self.model.parameters(), self.masters, strict=True):
                p.copy_(master)


def assert_equal(a, b):
    assert len(a) == len(b)
    for p, q in zip(a, b, strict=True):
        assert type(p) is type(q) is torch.Tensor and p.dtype == q.dtype and p.equal(q)


def masters(model):
    return [model[0].weight.master.clone(), model[2].weight.master.clone()]


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
    assert all(type(p) is not primary_weight.HeldWeight or p in made.state for p in grouped)


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


def trained(form):
    model, optimizer, _ = held(master=form)
    for seed in range(2):
        backward(model, seed)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


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


# ---- what PyTorch does to tensors


def test_values_are_the_rounded_master_for_everything_else():
    model, optimizer = trained("fp32")
    weight, values = model[0].weight, model[0].weight.master.bfloat16()
    assert isinstance(weight, nn.Parameter) and weight.dtype == torch.bfloat16 and weight.shape == (272, 144)
    assert weight.clone().equal(values) and weight.equal(values) and weight.norm().equal(values.norm())
    assert weight.float().equal(values.float()) and torch.empty_like(values).copy_(weight.detach()).equal(values)
    assert weight[3, 4].item() == values[3, 4].item() and torch.equal(weight.t(), values.t())
    assert repr(values) in repr(weight.detach()) and repr(values[0]) == repr(weight.detach()[0])
    assert "weight held in FP8" in repr(model[0]) and "2 weights are held in FP8" in str(optimizer.octile_primary)
    assert torch.zeros_like(weight).equal(torch.zeros_like(values)) and type(weight.new_ones(3)) is torch.Tensor
    weight.grad = None
    (weight.t().reshape(-1)[:5].sum() + weight.float().pow(2).sum() / 2).backward()
    wanted = values.clone()
    wanted[:5, 0] += 1
    assert type(weight.grad) is torch.Tensor and weight.grad.equal(wanted)
    codes = weight.codes.view(torch.uint8).clone()
    with torch.no_grad():
        weight.data.copy_(torch.ones(272, 144))
    assert weight.master.eq(1).all() and weight.codes.view(torch.uint8).ne(codes).any()
    assert model[0](torch.ones(1, 144, dtype=torch.bfloat16)).equal(
        nn.functional.linear(torch.ones(1, 144), torch.ones(272, 144), model[0].bias.float()).bfloat16()
    )


@pytest.mark.parametrize(
    "write, what",
    [
        (lambda w: w.mul_(2), "aten.mul_"),
        (lambda w: w.zero_(), "aten.zero_"),
        (lambda w: nn.init.normal_(w), "aten.normal_"),
        (lambda w: w.data.add_(1), "aten.add_"),
        (lambda w: w.data.view(-1).zero_(), "aten.zero_"),
        (lambda w: w.data.chunk(2)[0].copy_(torch.zeros(136, 144)), "aten.copy_"),
        (lambda w: w.data.__setitem__(0, 1), "an assignment to elements"),
        (lambda w: setattr(w, "data", torch.zeros(272, 144)), "an assignment to weight.data"),
        (lambda w: torch._foreach_mul_([w], 2), "aten._foreach_mul_"),
        (lambda w: torch.add(w, 1, out=w.detach()), "aten.add"),
        (
            lambda w: torch.optim.SGD([w], lr=1.0).step(lambda: setattr(w, "grad", torch.ones(272, 144).bfloat16())),
            "aten",
        ),
    ],
)
def test_other_writes_are_refused(write, what):
    model, _, _ = held()
    before = model[0].weight.clone()
    with torch.no_grad(), pytest.raises(NotImplementedError) as error:
        write(model[0].weight)
    assert str(error.value).startswith(f"octile: {what}")
    assert "writes into a weight that is held in FP8; allowed are copy_() of a whole weight" in str(error.value)
    assert model[0].weight.equal(before)


def test_without_fp8_layers_compute_with_the_rounded_master():
    model, _ = trained("fp32")
    plain = nn.Sequential(nn.Linear(144, 272), nn.GELU(), nn.Linear(272, 160, bias=False)).bfloat16()
    plain.load_state_dict(model.state_dict())
    ot.set_fp8(model, False)
    assert_equal(backward(model, 5), backward(plain, 5))


def test_compiled_models_and_activation_checkpointing():
    model, optimizer, _ = held()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    def gradients(call):
        model.zero_grad()
        x = batch(0)
        y = call(x)
        y.float().square().mean().backward()
        return [y.detach(), x.grad, *(p.grad for p in model.parameters())]

    for fp8 in (True, False):
        ot.set_fp8(model, fp8)
        wanted = gradients(model)
        assert_equal(gradients(compiled), wanted)
        assert_equal(gradients(lambda x, r=fp8: checkpoint(model, x, use_reentrant=r)), wanted)
        optimizer.step()
    ot.set_fp8(model, True)
    with torch.no_grad():
        assert compiled(batch(1)).equal(model(batch(1)))
    assert torch.func.grad(lambda x: model(x).float().square().mean())(batch(0).detach()).equal(gradients(model)[1])


def test_copies_pickles_and_casts():
    model, optimizer = trained("fp32")
    model[0].weight.main_grad = torch.zeros(272, 144)
    wanted = model(batch(0)).detach()
    copied, its = copy.deepcopy((model, optimizer))
    for other in (copied, pickle.loads(pickle.dumps(model))):
        assert other(batch(0)).equal(wanted) and other[0].weight.main_grad is not model[0].weight.main_grad
        assert_equal(masters(other), masters(model))
        with torch.no_grad():
            other[0].weight.copy_(torch.ones(272, 144))
    assert model(batch(0)).equal(wanted) and copied(batch(0)).ne(wanted).any()
    copied(batch(0)).sum().backward()
    with pytest.raises(NotImplementedError, match="an optimizer that octile.torch.primary_fp8 was given"):
        its.step()
    assert ot.primary_fp8(copied, its).weights["0.weight"] is copied[0].weight
    its.step()
    weight, gradient = model[0].weight, torch.ones(272, 144).bfloat16()
    weight.grad, exact = gradient, masters(model)
    half = Ordinary(dtype=torch.float16)
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        assert model.to(dtype)[0].weight is weight and weight.dtype == weight.grad.dtype == dtype
        assert_equal(masters(model), exact)
        half.model.to(dtype).load_state_dict(model.state_dict())
        assert model(batch(3, dtype)).equal(half.model(batch(3, dtype)))
    assert model(batch(0)).equal(wanted) and weight.main_grad is not None
    assert weight.grad.equal(gradient)
    y = model(batch(0))
    with pytest.raises(
        ValueError, match=r"a weight that is held in FP8 is 'in use \(Expected use_count.*allowed is one that"
    ):
        model.half()
    y.sum().backward()
    assert weight.dtype == torch.bfloat16 and weight.grad is not None


def test_frozen_exported_prepared_and_converted_again():
    model, _ = trained("fp32")
    weight = model[0].weight
    q = ot.quantize(weight.master.bfloat16(), granularity="128x128", scales="f32")
    state = ot.block_fp8_state_dict(model)
    assert state["0.weight"].view(torch.uint8).equal(q.codes.view(torch.uint8))
    assert ot.warmup(model, (1, 64)) == 2
    reason = "is an octile.torch.Linear already; its weight is held in FP8"
    assert ot.convert(model, min_dims=16).skipped["0"] == reason
    weight.requires_grad_(False)
    model(batch(0)).sum().backward()
    ot.freeze_to_fp8(model)
    assert type(model[0]) is ot.FrozenLinear and model[0].weight.view(torch.uint8).equal(q.codes.view(torch.uint8))


@pytest.mark.parametrize("n", [144, 256])
@pytest.mark.parametrize("recipe", RECIPES[:1] + RECIPES[-2:])
def test_experts(recipe, n):
    torch.manual_seed(0)
    layers = [ot.Experts(3, 176, n, dtype=torch.bfloat16, recipe=recipe) for _ in range(2)]
    optimizer = adamw(layers[0].parameters())
    layers[1].load_state_dict(layers[0].state_dict())
    primary = ot.primary_fp8(layers[0], optimizer)
    offsets = torch.tensor([5, 5, 30])
    for _ in range(2):
        results = []
        for layer in layers:
            x = torch.randn(32, 176, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0)).requires_grad_()
            y = layer(x, offsets)
            y[:30].float().square().mean().backward()
            results.append([y[:30].detach(), x.grad[:30], layer.weight.grad])
        assert_equal(*results)
        optimizer.step()
        layers[1].load_state_dict(layers[0].state_dict())
        layers[0].zero_grad(), layers[1].zero_grad()
    weight = primary.weights["weight"]
    assert weight.codes.shape == (3, n, 176) and weight.dequantize().shape == (3, n, 176)
    ot.set_fp8(layers[0], False)
    assert layers[0](x, offsets)[:30].isfinite().all()


# ---- refusals


def test_what_is_not_held():
    model = model_of()
    for recipe in ("rowwise", "mxfp8", "delayed"):
        with pytest.raises(
            NotImplementedError, match=f"0.weight is of recipe '{recipe}'; held in FP8 are weights of the"
        ):
            ot.primary_fp8(model_of(recipe))
    with pytest.raises(ValueError, match="model is 'one without FP8 layers'; allowed is one that octile.torch.convert"):
        ot.primary_fp8(nn.Sequential(nn.Linear(16, 16)))
    with pytest.raises(ValueError, match='model is "one whose FP8 layers\' weights are not in the optimizer"'):
        ot.primary_fp8(model, adamw([model[0].bias]))
    with pytest.raises(TypeError, match="optimizer is of type list; allowed is torch.optim.Optimizer"):
        ot.primary_fp8(model, [])
    with pytest.raises(ValueError, match="master is 'fp16'; allowed are 'fp32', 'bf16\\+16'"):
        ot.primary_fp8(model, master="fp16")
    with pytest.raises(ValueError, match="checkpoint is torch.int8; allowed are None, torch.bfloat16"):
        ot.primary_fp8(model, checkpoint=torch.int8)
    with pytest.raises(ValueError, match="master is 'bf16\\+16'; allowed is 'fp32', because 0.weight is torch.float16"):
        ot.primary_fp8(model_of(dtype=torch.float16), master="bf16+16")
    with pytest.raises(ValueError, match="0.weight is 'on the meta device'; allowed is one in memory"):
        ot.primary_fp8(model_of().to("meta"))
    hook = model[2].weight.register_post_accumulate_grad_hook(print)
    with pytest.raises(
        ValueError, match=r"2.weight is 'in use \(it has hooks\)'; allowed is a weight that nothing else"
    ):
        ot.primary_fp8(model)
    hook.remove()
    y = model(batch(0))
    with pytest.raises(
        ValueError, match=r"2.weight is 'in use \(Expected use_count|0.weight is 'in use \(Expected use_"
    ):
        ot.primary_fp8(model)
    del y
    assert type(model[0].weight) is nn.Parameter and model(batch(0)).isfinite().all()
    some = ot.primary_fp8(model, adamw([model[0].weight]))
    assert list(some.weights) == ["0.weight"] and "2.weight is not in the optimizer's groups" in str(some)


def test_operators_check_codes_and_scales():
    weight = held()[0][0].weight
    code, x = ot.Recipe().code, torch.randn(4, 144, dtype=torch.bfloat16)

    def forward(codes=weight.codes, scales=weight.scales, code=code, **others):
        return OPS.linear_forward(x, codes, None, code, False, False, w_scales=scales, **others)

    assert forward()[0].shape == (4, 272)
    with pytest.raises(ValueError, match=r"weight \[272, 144\] is not contiguous codes of e4m3"):
        forward(weight.clone())
    with pytest.raises(ValueError, match=r"w_scales is \[1, 4\]; allowed is contiguous, of 12 elements"):
        forward(scales=weight.scales[:1])
    with pytest.raises(ValueError, match="recipe is 'mxfp8'; allowed with weights that are held in FP8 are those with"):
        forward(code=ot.Recipe("mxfp8").code)
    state = torch.zeros(6)
    state[:3] = 1
    with pytest.raises(ValueError, match="scaling is given with w_scales; allowed is None"):
        forward(weight.codes, torch.ones(1), ot.Recipe("tensorwise").code, scaling=state)
    empty = torch.empty(0, dtype=torch.uint8)
    dy = torch.randn(4, 272, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="w_gradient is 0; allowed with w_scales are the octile_dtypes 3, 4 and 5"):
        OPS.linear_backward(dy, weight.codes, empty, empty, code, True, False, False, w_scales=weight.scales)
    with pytest.raises(ValueError, match=r"codes is \[272, 144\]; allowed is \[256, 144\]"):
        OPS.quantize_weight(torch.zeros(256, 144), code, weight.codes, weight.scales)
    with pytest.raises(ValueError, match=r"weight is \[144\]; allowed are \[n, k\] and \[experts, n, k\]"):
        OPS.quantize_weight(torch.zeros(144), code, weight.codes, weight.scales)
    # In a flat buffer codes may begin anywhere.
    buffer = torch.empty(272 * 144 + 1, dtype=torch.uint8)[1:].view(torch.float8_e4m3fn).view(272, 144)
    OPS.quantize_weight(weight.clone(), code, buffer, weight.scales)
    assert buffer.view(torch.uint8).equal(weight.codes.view(torch.uint8))
    assert forward(buffer)[0].equal(forward()[0])


def test_fused_mlps_read_codes():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj = nn.Linear(64, 128, bias=False)
            self.up_proj = nn.Linear(64, 128, bias=False)
            self.down_proj = nn.Linear(128, 64, bias=False)

        def forward(self, x):
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    torch.manual_seed(0)
    ours = nn.Sequential(Mlp()).bfloat16()
    ot.convert(ours, min_dims=16)
    theirs = copy.deepcopy(ours)
    ot.primary_fp8(ours)
    count, results = OPS.weight_quantizations(), []
    for model in (ours, theirs):
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
        y = model(x)
        y.float().square().mean().backward()
        results.append([y.detach(), x.grad, *(p.grad for p in model.parameters())])
        if model is ours:
            assert OPS.weight_quantizations() == count
    assert_equal(*results)
    weights = ours[0].gate_proj.weight, ours[0].up_proj.weight
    for weight in weights:
        weight.main_grad = torch.zeros(weight.shape)
    ours(x).float().square().mean().backward()
    assert OPS.weight_quantizations() > count and weights[0].main_grad.bfloat16().equal(results[0][2])


def test_fsdp_refuses_a_held_model(tmp_path):
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model, _, _ = held()
        with pytest.raises(
            ValueError, match=r"model is 'one with a weight \(272, 144\) held in FP8'; allowed is a model"
        ):
            fully_shard(model, mesh=mesh)
        sharded = model_of()
        fully_shard(sharded, mesh=mesh)
        with pytest.raises(
            ValueError, match="0.weight is 'DTensor'; allowed is a plain tensor: models that FSDP shards"
        ):
            ot.primary_fp8(sharded)
    finally:
        torch.distributed.destroy_process_group()
