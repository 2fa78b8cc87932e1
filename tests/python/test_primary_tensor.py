"""Weights that are held in FP8: what PyTorch may do to such a tensor, which layers read it, and what is refused."""

import copy
import pickle

import pytest
import torch
from held import Ordinary, adamw, assert_equal, backward, batch, held, masters, model_of, trained
from torch import nn
from torch.utils.checkpoint import checkpoint

import octile.torch as ot
from octile.torch import held_weight

OPS = torch.ops.octile


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
    assert type(model[0]) is ot.FrozenLinear
    assert model[0].weight.codes.view(torch.uint8).equal(q.codes.view(torch.uint8))


@pytest.mark.parametrize("n", [144, 256])
@pytest.mark.parametrize("recipe", held_weight.RECIPES[:1] + held_weight.RECIPES[-2:])
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


def test_ddp_and_distributed_checkpoints(tmp_path):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        (model, optimizer), (alone, its) = trained("fp32"), trained("fp32")
        wrapped = nn.parallel.DistributedDataParallel(model)  # broadcasts the rounded masters
        for one, step in ((wrapped, optimizer), (alone, its)):
            one(batch(2)).float().square().mean().backward()
            step.step()
        assert_equal(masters(model), masters(alone))
        state, of_optimizer = get_state_dict(model, optimizer)
        fresh, fresh_optimizer, _ = held()
        set_state_dict(fresh, fresh_optimizer, model_state_dict=state, optim_state_dict=of_optimizer)
        assert_equal(masters(fresh), masters(model))
    finally:
        torch.distributed.destroy_process_group()


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
