"""Experts that ``convert`` takes: those of transformers' mixtures, and torchtitan's by a class of the same interface."""

import copy
import io
import types

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import octile.torch as ot
from octile.torch.mixture import route
from octile.torch.thresholds import EXPERTS, LAYERS, measured, thresholds_of

transformers = pytest.importorskip("transformers")
from transformers.integrations.moe import use_experts_implementation  # noqa: E402
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts  # noqa: E402

E, H, I, TOP_K = 4, 64, 32, 2
RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise", "delayed")


@use_experts_implementation(has_gate=False)
class UngatedExperts(nn.Module):
    """Experts without a gate, as NemotronH has them."""

    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Parameter(torch.empty(E, I, H))
        self.down_proj = nn.Parameter(torch.empty(E, H, I))
        self.num_experts, self.act_fn = E, nn.GELU()

    def forward(self, hidden_states, top_k_index, top_k_weights):
        raise AssertionError("not asked for")


def config_of(kind, implementation="grouped_mm"):
    if kind is GptOssExperts:
        config = transformers.GptOssConfig(hidden_size=H, intermediate_size=I, num_local_experts=E)
    else:
        config = transformers.Qwen3MoeConfig(hidden_size=H, moe_intermediate_size=I, num_experts=E)
    config._experts_implementation = implementation
    return config


class Block(nn.Module):
    """A mixture with a router, as a model has it."""

    def __init__(self, kind=Qwen3MoeExperts, dtype=torch.bfloat16, top_k=TOP_K):
        super().__init__()
        self.experts, self.router, self.top_k = kind(config_of(kind)), nn.Linear(H, E), top_k
        for p in self.experts.parameters():
            nn.init.normal_(p, std=0.2)
        self.to(dtype)

    def forward(self, x):
        scores, chosen = self.router(x).softmax(-1).topk(self.top_k)
        return self.experts(x, chosen, scores)


def converted(block, recipe="blockwise", **options):
    made = copy.deepcopy(block)
    report = ot.convert(made, recipe, min_dims=16, **options)
    assert report.experts == ["experts"], report
    return made


def gradients(block, x, seed=1):
    """Returns y, and the gradients of x and of the parameters."""
    block.zero_grad()
    x = x.detach().requires_grad_()
    y = block(x)
    generator = torch.Generator().manual_seed(seed)
    y.backward(torch.randn(y.shape, generator=generator).to(y.dtype))
    return [y.detach(), x.grad, *(p.grad for p in block.parameters() if p.grad is not None)]


def assert_near(ours, theirs, bound=0.12):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert (a.float() - b.float()).norm() <= bound * b.float().norm()


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs) and all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def tokens(count=24, dtype=torch.bfloat16):
    return torch.randn(count, H, dtype=dtype)


# ---- what is computed


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", [Qwen3MoeExperts, GptOssExperts, UngatedExperts])
def test_results_and_gradients_are_those_of_the_experts_within_fp8(kind, recipe):
    block, x = Block(kind), tokens()
    made = converted(block, recipe)
    assert_near(gradients(made, x), gradients(block, x), 0.12 if recipe == "blockwise" else 0.2)  # E5M2 gradients


@pytest.mark.parametrize("kind", [Qwen3MoeExperts, GptOssExperts])
@pytest.mark.parametrize("scores_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("chosen", [[[0, 1]] * 5, [[3, 0], [3, 1], [3, 2]], [[2, 1]], []])
def test_any_routing(chosen, scores_dtype, kind):
    block = Block(kind)
    made = converted(block)
    index = torch.tensor(chosen, dtype=torch.int64).view(-1, TOP_K)
    scores = torch.rand(index.shape, dtype=scores_dtype)
    results = []
    for experts in (made.experts, block.experts):
        x, s = tokens(len(chosen)).fill_(0.5).requires_grad_(), scores.clone().requires_grad_()
        experts.zero_grad()
        y = experts(x, index, s)
        y.backward(torch.ones_like(y))
        results.append([y.detach(), x.grad, s.grad, *(p.grad for p in experts.parameters() if p.grad is not None)])
    assert_near(*results)


def test_a_route_sorts_stably_and_counts_on_the_device():
    way = route(torch.tensor([[2, 0], [0, 2], [3, 0]]), 5)
    assert way.order.tolist() == [1, 2, 5, 0, 3, 4] and way.places[way.order].tolist() == list(range(6))
    assert way.offsets.tolist() == [0, 3, 3, 5, 6, 6] and way.offsets.dtype == torch.int32
    meta = route(torch.empty(3, 2, dtype=torch.int64, device="meta"), 5)  # reads no value
    assert meta.offsets.shape == (6,)


@pytest.mark.parametrize("kind", [Qwen3MoeExperts, GptOssExperts])
def test_compiled_without_a_break_it_is_the_same(kind):
    made, x = converted(Block(kind)), tokens()
    wanted = gradients(made, x)
    torch._dynamo.reset()
    made.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    assert_near(gradients(made, x), wanted, 0.01)  # sums in another order


def test_checkpointing_has_the_same_bits():
    made, x = converted(Block()), tokens()
    wanted = gradients(made, x)
    again = [p.grad for p in made.parameters()]
    made.zero_grad()
    x = x.detach().requires_grad_()
    y = checkpoint(made, x, use_reentrant=False)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype))
    assert_equal([y.detach(), x.grad, *(p.grad for p in made.parameters())], [*wanted[:2], *again])


def test_autocast_computes_fp32_experts_in_bf16():
    block, x = Block(dtype=torch.float32), tokens(dtype=torch.float32)
    made = converted(block)
    wanted = gradients(block, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(made, x)
    assert_near(found, wanted)


def test_derivatives_are_those_of_other_layers():
    made, x = converted(Block()), tokens(6)
    wanted = gradients(made, x)[2:]
    y = made(x.requires_grad_()).float().square().sum()
    gradient = torch.autograd.grad(y, x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="first gradients only"):
        gradient.float().square().sum().backward()
    given = dict(made.named_parameters())
    y = torch.randn(6, H, generator=torch.Generator().manual_seed(1)).bfloat16()

    def loss(parameters):
        return (torch.func.functional_call(made, parameters, (x,)) * y).float().sum()

    found = torch.func.grad(loss)(given)
    assert_near([found[name] for name in given], wanted)  # dy is rounded where it is weighted


# ---- what is kept


def kept_bytes(block, x):
    """Returns the bytes that autograd keeps, without parameters and x, each memory once."""
    mine = {p.data_ptr() for p in (*block.parameters(), x)}
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = block(x)
    del y
    return sum(size for address, size in seen.items() if address not in mine)


def test_of_a_row_its_fp8_copy_and_the_first_product_are_kept():
    class Chosen(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.experts = block.experts
            self.index = torch.randint(0, E, (512, TOP_K))
            self.scores = torch.rand(512, TOP_K).bfloat16()

        def forward(self, x):
            return self.experts(x, self.index, self.scores.clone().requires_grad_())

    block, x = Block(), tokens(512).requires_grad_()
    rows = 512 * TOP_K
    ours = kept_bytes(Chosen(converted(block)), x)
    # The copy has groups that begin at multiples of 128. Four integers of 8 bytes and a score are kept, too.
    copy_of_x = (rows + E * 128) * H * (1 + 4 / 128)
    assert ours <= copy_of_x + rows * (2 * I * 2 + 4 * 8 + 2 * 4) + 1024
    assert ours < 0.5 * kept_bytes(Chosen(block), x)


def test_copies_of_weights_are_kept_as_convert_was_told():
    x, counts = tokens(), {}
    for weights in ("none", "rowwise", "both"):
        made = converted(Block(), weights=weights)
        gradients(made, x)
        before = torch.ops.octile.weight_copies_made()
        gradients(made, x)  # a second microbatch
        counts[weights] = torch.ops.octile.weight_copies_made() - before
    assert counts["none"] > counts["rowwise"] > counts["both"] == 0


def test_weights_in_the_other_layout_are_multiplied_as_they_lie():
    def gate_of(experts, h):
        gate, up = h.chunk(2, -1)
        return nn.functional.silu(gate) * up

    x, found = tokens(), []
    for transposed in (False, True):
        torch.manual_seed(0)
        block = Block()
        if transposed:
            for name in ("gate_up_proj", "down_proj"):
                p = block.experts._parameters[name]
                block.experts._parameters[name] = nn.Parameter(p.detach().transpose(1, 2).contiguous())
            block.experts.is_transposed = True
        block.experts._apply_gate = types.MethodType(gate_of, block.experts)
        made = converted(block)
        before = torch.ops.octile.weight_copies_made()
        results = gradients(made, x)
        # A copy for each of two weights and two passes, whose memory no pass has given.
        assert torch.ops.octile.weight_copies_made() - before == 4
        weights = [made.experts.gate_up_proj.grad, made.experts.down_proj.grad]
        rest = [r for r in results if r.dim() != 3]
        found.append([*rest, *(w.transpose(1, 2) if transposed else w for w in weights)])
    assert all(g.is_contiguous() for g in weights)
    assert_near(*found, 0.01)


@pytest.mark.parametrize("kind", [Qwen3MoeExperts, GptOssExperts])
def test_gradients_are_added_to_main_grad(kind):
    made, x = converted(Block(kind)), tokens()
    wanted = gradients(made, x)
    weights = [made.experts.gate_up_proj, made.experts.down_proj]
    grads = [p.grad for p in weights]
    for p in weights:
        p.main_grad = torch.ones(p.shape)
        p.grad_added_to_main_grad = False
    found = gradients(made, x)
    assert_equal(found[:2], wanted[:2])
    for p, grad in zip(weights, grads, strict=True):
        assert p.grad_added_to_main_grad and not p.grad.any()
        torch.testing.assert_close(p.main_grad, 1 + grad.float(), rtol=0.02, atol=0.02)


def test_frozen_weights_have_no_gradient_and_the_rest_stays():
    made, x = converted(Block()), tokens()
    wanted = gradients(made, x)
    made.experts.requires_grad_(False)
    made.experts.gate_up_proj.grad = made.experts.down_proj.grad = None
    found = gradients(made, x)
    assert made.experts.down_proj.grad is None
    assert_equal(found, [*wanted[:2], *wanted[-2:]])


# ---- what is switched and watched


def test_without_fp8_it_is_the_implementation_of_transformers():
    block, x = Block(GptOssExperts), tokens()
    made = converted(block)
    assert ot.set_fp8(made, False) == 2
    assert_near(gradients(made, x), gradients(block, x), 0.01)
    schedule = ot.Schedule(made, begin=1)
    assert not schedule.step(0) and schedule.step(1) and made.experts.octile_down_proj.fp8


@pytest.mark.parametrize("kind", [Qwen3MoeExperts, GptOssExperts])
@pytest.mark.parametrize("check", ["step", "call"])
def test_a_sentry_sees_products_of_experts(check, kind):
    made, x = converted(Block(kind)), tokens()
    watch = ot.sentry(made, check=check)
    gradients(made, x)
    assert not watch.step().item()
    with torch.no_grad():
        made.experts.down_proj[0, 0, 0] = torch.inf
    with pytest.warns(UserWarning, match="experts.octile_"):
        gradients(made, x)
        assert watch.step().item()
    counts = watch.counts
    assert set(counts) == {"experts.octile_gate_up_proj", "experts.octile_down_proj"}
    assert counts["experts.octile_down_proj"].output == 1 and counts["experts.octile_gate_up_proj"].output == 0


def test_warmup_and_scales_know_them():
    made, x = converted(Block(), ot.Recipe("delayed", warmup=1, history=2)), tokens()
    assert ot.warmup(made, tokens=(1, 64)) == 2
    assert ot.warmup(converted(Block(GptOssExperts)), tokens=(1, 64)) == 2
    assert made.experts.octile_down_proj.rows == made.experts.config.num_experts_per_tok == 8
    gradients(made, x)
    assert ot.update_scales(made) == 2
    assert made.experts.octile_down_proj._scaling.scales.shape == (2, E)
    gradients(made, x)


def test_few_rows_compute_without_fp8():
    block, x = Block(), tokens(8)
    made = converted(block)
    made.experts.least_rows = (8 * TOP_K + 1, 0, 8 * TOP_K)
    assert_near(gradients(made, x), gradients(block, x), 0.01)
    made.eval()
    assert not torch.equal(made(x), block(x))


# ---- what stays


def test_state_copies_and_class():
    block, x = Block(), tokens()
    made = converted(block)
    assert list(made.state_dict()) == list(block.state_dict())
    assert isinstance(made.experts, Qwen3MoeExperts) and type(made.experts).__name__ == "Qwen3MoeExperts"
    assert block.experts.config._experts_implementation == "grouped_mm"
    wanted = made(x)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    for other in (copy.deepcopy(made), torch.load(file, weights_only=False)):
        assert other(x).equal(wanted) and other.experts.octile_down_proj.weight is other.experts.down_proj
        assert other.experts.octile_down_proj.weight is not made.experts.down_proj
    other = Block()
    ot.convert(other, min_dims=16)
    other.load_state_dict(made.state_dict())
    assert other(x).equal(wanted)
    block.load_state_dict(other.state_dict())
    with torch.device("meta"):
        empty = Block()
    ot.convert(empty, min_dims=16)
    empty.to_empty(device="cpu").load_state_dict(made.state_dict())
    assert empty(x).equal(wanted) and "ExpertWeight(experts=4, recipe=blockwise)" in repr(empty)


def test_weights_under_fsdp2_are_those_that_it_gathers():
    from torch.distributed.fsdp import fully_shard

    made, x = converted(Block(dtype=torch.float32), weights="both"), tokens(dtype=torch.float32)
    wanted = gradients(made, x)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        sharded = converted(Block(dtype=torch.float32), weights="both")
        sharded.load_state_dict(made.state_dict())
        fully_shard(sharded.experts, mesh=torch.distributed.init_device_mesh("cpu", (1,)), reshard_after_forward=False)
        found = gradients(sharded, x)
        assert_equal(found[:2], wanted[:2])
        assert sharded.experts.gate_up_proj.grad.full_tensor().equal(made.experts.gate_up_proj.grad)
    finally:
        torch.distributed.destroy_process_group()


def model_with(experts, name="experts"):
    return nn.ModuleDict({name: experts})


def reason_of(experts, recipe="blockwise", name="experts", **options):
    report = ot.convert(model_with(experts, name), recipe, **({"min_dims": 16} | options))
    assert not report.converted
    return report.skipped[name]


class WithoutRegistry(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Parameter(torch.ones(E, 2 * I, H)), nn.Parameter(torch.ones(E, H, I))

    def forward(self, x):
        return x


def changed(**attributes):
    experts = Block().experts
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor):
            experts._parameters[name] = nn.Parameter(value, requires_grad=value.is_floating_point())
        else:
            setattr(experts, name, value)
    return experts


def with_parametrization():
    experts = Block().experts
    nn.utils.parametrize.register_parametrization(experts, "down_proj", nn.Identity())
    experts._parameters["down_proj"] = nn.Parameter(torch.ones(E, H, I))
    return experts


@pytest.mark.parametrize(
    "make, reason",
    [
        (WithoutRegistry, "is a WithoutRegistry, whose forward does not ask transformers' registry of experts"),
        (lambda: changed(forward=lambda *x: x), "has a forward of its own"),
        (with_parametrization, "has a parametrization of down_proj"),
        (lambda: changed(_is_expert_parallel=True), "its experts are spread over devices"),
        (lambda: changed(has_post_expert_norm=True), "has a norm after each expert"),
        (lambda: changed(norm=nn.LayerNorm(H)), "has a parameter 'norm.bias', which its experts do not have elsewhere"),
        (lambda: changed(down_proj=torch.ones(E, H, I, dtype=torch.int8)), "its down_proj is of type int8"),
        (lambda: changed(down_proj=torch.ones(E, H, I).to(torch.float8_e5m2)), "its down_proj is of type float8_e5m2"),
        (
            lambda: changed(down_proj=torch.ones(E, H, 2 * I)),
            "its weights do not fit each other: gate_up_proj [4, 64, 64], down_proj [4, 64, 64]",
        ),
        (
            lambda: changed(gate_up_proj=torch.ones(E, 48, H), down_proj=torch.ones(E, H, 24)),
            "sizes are not multiples of 16",
        ),
    ],
)  # fmt: skip
def test_experts_that_stay_say_why(make, reason):
    assert reason_of(make()) == reason


def test_experts_of_an_earlier_release_are_spread_if_they_are_fewer():
    block = Block()
    del block.experts._is_expert_parallel
    assert ot.convert(copy.deepcopy(block), min_dims=16).experts == ["experts"]
    for name in ("gate_up_proj", "down_proj"):
        setattr(block.experts, name, nn.Parameter(getattr(block.experts, name)[: E // 2].detach()))
    assert reason_of(block.experts) == "its experts are spread over devices"


def test_experts_stay_by_name_recipe_and_thresholds():
    assert reason_of(Block().experts, filter=lambda name, module: False) == "the filter leaves it"
    assert reason_of(Block().experts, name="router") == "router by its name 'router' (preset deepseek-v3)"
    assert reason_of(Block().experts, "mxfp8") == "recipe mxfp8 has no experts"
    assert reason_of(Block().experts, "rowwise") == "recipe rowwise has no weight gradients of experts; rowwise:dw=bf16 has"
    assert reason_of(Block().experts, min_dims=128) == "in_features or out_features is below 128"
    assert reason_of(Block().experts, min_dims="auto") == "too small to gain at any measured number of rows"
    experts = Block().experts
    other = copy.deepcopy(experts)
    other.down_proj = experts.down_proj
    report = ot.convert(nn.ModuleDict({"a": experts, "b": other}), min_dims=16)
    assert report.skipped["b"] == "shares its down_proj with another module"
    experts = Block().experts
    ot.convert(model_with(experts), min_dims=16)
    assert reason_of(experts) == "is converted already"


def measured_experts(monkeypatch, *rows):
    """Says that experts were measured so: rows of all, hidden size, width, training, forward, experts."""
    tables = {LAYERS: measured(LAYERS), EXPERTS: thresholds_of("a card", {"blockwise": rows})}
    monkeypatch.setattr("octile.torch.thresholds.measured", tables.__getitem__)


def test_thresholds_count_the_rows_of_a_call(monkeypatch):
    measured_experts(monkeypatch, [16 * 512, 4096, 1408, True, False, 16], [16 * 1024, 4096, 1408, True, True, 16])
    with torch.device("meta"):
        config = transformers.Qwen3MoeConfig(
            hidden_size=4096, moe_intermediate_size=1536, num_experts=32, num_experts_per_tok=4
        )
        models = [model_with(Qwen3MoeExperts(config)) for _ in range(5)]
    report = ot.convert(models[0])
    assert report.converted["experts"] == (
        "32 experts of [3072, 4096] and [4096, 1536], FP8 from 16384 rows a call on, in eval() from 65536 on "
        "(from 32768 on after trust_weights)"
    )
    assert "34.6 MB" not in str(report) and "604 MB with weights='rowwise', 1.21 GB with 'both'" in str(report)
    assert str(report).startswith("0 linear layers and the experts of 1 mixtures to blockwise, 0 not\n")
    assert report.thresholds.endswith("; experts of blockwise by verdicts measured on a card")
    # Without gradients a weight that is not trusted is compared first, as each expert's own.
    assert models[0]["experts"].least_rows == (32 * 512, 32 * 1024, 32 * 2048)
    report = ot.convert(models[1], tokens=(4097, 8192))
    told = "FP8 at any number of rows, in eval() from 65536 on (from 32768 on after trust_weights)"
    assert report.converted["experts"].endswith(f"[4096, 1536], {told}")
    assert models[1]["experts"].least_rows == (0, 32 * 1024, 32 * 2048)
    report = ot.convert(models[2], tokens=4095)
    assert report.skipped["experts"] == "gains from 16384 rows on, and calls have at most 16380"
    assert report.min_dims == 1536
    measured_experts(monkeypatch, [16 * 512, 4096, 1408, False, True, 16])
    report = ot.convert(models[3])
    assert report.converted["experts"].endswith(", FP8 in eval() from 65536 on (from 16384 on after trust_weights)")
    measured_experts(monkeypatch, [16 * 512, 4096, 2048, True, True, 16])
    assert ot.convert(models[4]).skipped["experts"] == "too small to gain at any measured number of rows"


def test_thresholds_are_not_asked_about_experts_that_stay_by_another_reason(monkeypatch):
    measured_experts(monkeypatch, [16, 16, 16, True, True, 1])
    report = ot.convert(model_with(Block().experts), "mxfp8")
    assert report.skipped["experts"] == "recipe mxfp8 has no experts" and "experts" not in report.thresholds


def test_the_implementation_is_not_for_experts_that_were_not_converted():
    ot.convert(model_with(Block().experts), min_dims=16)  # registers it
    other = Block()
    other.experts.config._experts_implementation = "octile"
    with pytest.raises(ValueError, match="experts_implementation is 'octile'; allowed is the name that octile.torch.convert"):
        other(tokens())
    made = converted(Block())
    made.experts._is_expert_parallel = True
    with pytest.raises(ValueError, match="experts is 'spread over devices'; allowed are"):
        made(tokens())


# ---- torchtitan, and functions


class GroupedExperts(nn.Module):
    """Has the interface of torchtitan's class of this name."""

    def __init__(self, dim, hidden_dim, num_experts):
        super().__init__()
        self.num_experts = num_experts
        self.w1 = nn.Parameter(0.2 * torch.randn(num_experts, hidden_dim, dim))
        self.w2 = nn.Parameter(0.2 * torch.randn(num_experts, dim, hidden_dim))
        self.w3 = nn.Parameter(0.2 * torch.randn(num_experts, hidden_dim, dim))

    def forward(self, x: torch.Tensor, num_tokens_per_expert: torch.Tensor) -> torch.Tensor:
        ends = num_tokens_per_expert.cumsum(0).to(torch.int32)

        def product(a, w):
            return torch._grouped_mm(a, w.bfloat16().transpose(-2, -1), offs=ends)

        rows = x.bfloat16()
        return product(nn.functional.silu(product(rows, self.w1)) * product(rows, self.w3), self.w2).type_as(x)


class Sorted(nn.Module):
    """Calls them with rows that are sorted."""

    def __init__(self, sizes=(9, 0, 1, 14)):
        super().__init__()
        self.experts, self.sizes = GroupedExperts(H, I, E), torch.tensor(sizes)

    def forward(self, x):
        return self.experts(x, self.sizes)


@pytest.mark.parametrize("recipe", RECIPES)
def test_experts_of_torchtitan(recipe):
    block, x = Sorted(), tokens(dtype=torch.float32)
    made = converted(block, recipe)
    assert list(made.state_dict()) == list(block.state_dict())
    assert_near(gradients(made, x), gradients(block, x))
    assert_equal(gradients(copy.deepcopy(made), x), gradients(made, x))
    ot.set_fp8(made, False)
    assert_near(gradients(made, x), gradients(block, x), 0.01)


def test_experts_of_torchtitan_compiled_and_kept():
    block, x = Sorted(), tokens(dtype=torch.float32)
    made = converted(block)
    wanted, many = gradients(made, x), Sorted((512, 512, 512, 512))
    # One copy of x for two weights, and both of their products.
    assert kept_bytes(converted(many), tokens(2048)) <= 2048 * (H * (1 + 4 / 128) + 2 * I * 2) + E * 128 * H
    for p in made.parameters():
        p.main_grad = torch.zeros(p.shape)
    assert_equal(gradients(made, x), wanted[:2])
    assert_near([p.main_grad for p in made.parameters()], wanted[2:], 0.01)
    for p in made.parameters():
        del p.main_grad
    torch._dynamo.reset()
    made.compile(fullgraph=True, backend="aot_eager")
    assert_near(gradients(made, x), wanted, 0.01)


def test_other_grouped_experts_stay():
    class GroupedExperts(Sorted().experts.__class__):
        def forward(self, x, counts, more):
            return x

    reason = "is a GroupedExperts whose forward takes x, counts, more, not x, num_tokens_per_expert"
    assert reason_of(GroupedExperts(H, I, E)) == reason


def test_local_experts_of_expert_parallelism_are_computed():
    from torch.distributed.tensor import Shard, distribute_tensor

    block, x = Sorted(), tokens(dtype=torch.float32)
    made = converted(block)
    wanted = gradients(made, x)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        for name, p in list(made.experts.named_parameters()):
            made.experts.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))
        found = gradients(made, x)
        assert_equal(found[:2], wanted[:2])
        assert_equal([g.full_tensor() for g in found[2:]], wanted[2:])
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("as_view", [False, True])
def test_grouped_mm_takes_what_that_of_pytorch_takes(as_view):
    ends = torch.tensor([9, 9, 10, 24], dtype=torch.int32)
    w = torch.randn(E, I, H).bfloat16().transpose(-2, -1) if as_view else torch.randn(E, H, I).bfloat16()
    results = []
    for function in (ot.grouped_mm, torch._grouped_mm):
        x, v = tokens().fill_(0.3).requires_grad_(), w.detach().requires_grad_()
        y = function(x, v, offs=ends)
        y.backward(torch.full_like(y, 0.1))
        results.append([y.detach(), x.grad, v.grad])
    assert_near(*results)


def test_grouped_mm_adds_to_main_grad_and_refuses():
    ends, x = torch.tensor([9, 9, 10, 24], dtype=torch.int32), tokens()
    w = nn.Parameter(torch.randn(E, H, I).bfloat16())
    ot.grouped_mm(x, w, ends).sum().backward()
    wanted, w.grad, w.main_grad = w.grad, None, torch.zeros(E, H, I)
    ot.grouped_mm(x, w, ends).sum().backward()
    assert w.grad is None
    assert_near([w.main_grad], [wanted.float()], 0.01)
    with pytest.raises(ValueError, match=r"w.shape is \(64, 32\); allowed is \(experts, k, n\)"):
        ot.grouped_mm(x, w[0], ends)
    with pytest.raises(NotImplementedError, match="recipe is 'mxfp8'"):
        ot.grouped_mm(x, w, ends, recipe="mxfp8")


def test_an_old_transformers_has_no_registry(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers.integrations.moe", types.ModuleType("moe"))
    monkeypatch.delitem(__import__("sys").modules, "transformers.integrations.moe")
    reason = "is a Qwen3MoeExperts, whose forward asks another registry than transformers' own"
    assert reason_of(Block().experts) == reason
