"""Experts that several processes share, by gloo: what FP8 rows on the way change, and what they do not."""

import contextlib
import datetime

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

import octile.torch as ot
from octile.torch.distributed import ExpertParallel, clip_grad_norm_, expert_parallel
from octile.torch.distributed import expert_functions as functions
from octile.torch._operators import message_bytes, ops
from octile.torch.recipes import as_recipe

transformers = pytest.importorskip("transformers")
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts  # noqa: E402

E, H, I, TOP_K, STEPS = 8, 144, 32, 2, 5
WORLDS = (2, 4)
TOKENS = (130, 0, 17, 1)  # of a rank


class GroupedExperts(nn.Module):
    """The interface of torchtitan's."""

    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Parameter(torch.empty(E, I, H)), nn.Parameter(torch.empty(E, I, H))
        self.w2 = nn.Parameter(torch.empty(E, H, I))

    def forward(self, x, num_tokens_per_expert):
        raise AssertionError("not converted")


class Model(nn.Module):
    """Experts behind a routing that is given, with scores of a half."""

    def __init__(self, kind, recipe="blockwise", fuse=True):
        super().__init__()
        torch.manual_seed(0)
        if kind is GroupedExperts:
            self.experts = kind()
        elif kind is GptOssExperts:
            config = transformers.GptOssConfig(hidden_size=H, intermediate_size=I, num_local_experts=E)
            config._experts_implementation = "grouped_mm"
            self.experts = kind(config)
        else:
            config = transformers.Qwen3MoeConfig(hidden_size=H, moe_intermediate_size=I, num_experts=E)
            config._experts_implementation = "grouped_mm"
            self.experts = kind(config)
        for p in self.experts.parameters():
            nn.init.normal_(p, std=0.2)
        self.bfloat16()
        if recipe is not None:
            assert ot.convert(self, recipe, min_dims=16, fuse=fuse).experts == ["experts"]

    def forward(self, x, chosen, scores=None):
        scores = torch.full(chosen.shape, 0.5, dtype=x.dtype) if scores is None else scores
        if not isinstance(self.experts, GroupedExperts):
            return self.experts(x, chosen, scores)
        ids, order = chosen.reshape(-1).sort(stable=True)
        rows = self.experts(x[order // TOP_K], torch.bincount(ids, minlength=E))
        weighted = torch.zeros_like(rows).index_copy(0, order, rows * scores.reshape(-1, 1)[order])
        return weighted.view(-1, TOP_K, H).sum(1)


def alone(kind=Qwen3MoeExperts, recipe="blockwise"):
    """Returns what spread experts are compared with: PyTorch computes their activation too."""
    return Model(kind, recipe, fuse=False)


def exact(shape, generator):
    """Returns values that no quantiser rounds."""
    values = torch.tensor([-2, -1.5, -1, -0.75, -0.5, 0, 0.5, 0.625, 1, 1.25, 1.75, 3])
    return values[torch.randint(len(values), shape, generator=generator)].bfloat16()


def data_of(rank, tokens=None):
    """Returns x, the experts of its tokens, and the gradient of the result. One of the experts has no token."""
    generator = torch.Generator().manual_seed(rank)
    count = TOKENS[rank] if tokens is None else tokens
    chosen = torch.rand(count, E - 1, generator=generator).topk(TOP_K).indices
    return exact((count, H), generator), chosen + (chosen >= 3), exact((count, H), generator)


def all_data(world):
    return [torch.cat(parts) for parts in zip(*map(data_of, range(world)), strict=True)]


def step(model, x, chosen, dy, **options):
    x = x.detach().requires_grad_()
    y = model(x, chosen, **options)
    y.backward(dy)
    return y.detach(), x.grad


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(model, data):
    """Returns y and dx of each step, and the weights' last gradients and values. Biases stay: their gradients are sums
    in another order."""
    for name, p in model.named_parameters():
        p.requires_grad_("bias" not in name)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=1e-4, foreach=False)
    results = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        results += step(model, *data)
        optimizer.step()
    return results, [whole(t).detach() for p in weights for t in (p.grad, p)]


def quantised_afterwards(x, kind, source, way):
    """``send`` as it is if rows travel in bfloat16, and their ranks quantise what arrives."""
    rows = functions.to_experts(x if source is None else source.rows_of(x), way)
    messages = ops.quantize_messages(rows, kind.text)
    return functions.Arrived(*ops.open_messages(messages, way.index, kind.text, x.shape[1]))


@contextlib.contextmanager
def replaced(owner, name, other):
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield before
    finally:
        setattr(owner, name, before)


def sent_bytes(call):
    """Returns the bytes of each all-to-all that ``call`` makes, and of its counts."""
    sent = []

    def counted(output, data, *sizes, **options):
        sent.append(data.numel() * data.element_size())
        return before(output, data, *sizes, **options)

    with replaced(dist, "all_to_all_single", counted) as before:
        call()
    return sent


def error_of(call):
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


KINDS = {
    "qwen": (Qwen3MoeExperts, "blockwise"),
    "qwen hybrid": (Qwen3MoeExperts, "blockwise_hybrid"),
    "gpt-oss": (GptOssExperts, "blockwise"),
    "gpt-oss hybrid": (GptOssExperts, "blockwise_hybrid"),
    "torchtitan": (GroupedExperts, "blockwise"),
}


def steps_of(mesh, rank, name):
    """Returns what five steps make, with rows in FP8, and quantised afterwards."""
    kind, recipe = KINDS[name]
    made = []
    for send in (functions.send, quantised_afterwards):
        model = Model(kind, recipe)
        expert_parallel(model, mesh)
        with replaced(functions, "send", send):
            made.append(train(model, data_of(rank)))
    return made


def wide_gradients(mesh, rank, kind, afterwards=False):
    """Returns, for values that quantisers round, with a router: y, dx, the scores' and the weights' gradients."""
    model = Model(kind)
    expert_parallel(model, mesh)
    with replaced(functions, "send", quantised_afterwards if afterwards else functions.send):
        return wide_step(model, [rank])


def wide_step(model, ranks):
    x, chosen, dy, scores = (torch.cat(parts) for parts in zip(*map(wide_data, ranks), strict=True))
    scores = scores.requires_grad_()
    y, dx = step(model, x, chosen, dy, scores=scores)
    return [y, dx, scores.grad], [whole(p.grad) for p in model.parameters()]


def wide_data(rank):
    generator = torch.Generator().manual_seed(10 + rank)
    x, chosen, dy = data_of(rank)
    x, dy = (
        torch.randn(t.shape, generator=generator) * 2.0 ** torch.randint(-9, 9, t.shape, generator=generator)
        for t in (x, dy)
    )
    return x.bfloat16(), chosen, dy.bfloat16(), torch.rand(chosen.shape, generator=generator).bfloat16()


def one_rank_has_all(mesh, rank, world):
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh)
    x, chosen, dy = data_of(rank)
    y = step(model, x, chosen % 2, dy)
    return y, [whole(p.grad) for p in model.parameters()]


def nan_rows(mesh, rank):
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh)
    x, chosen, _ = data_of(rank, tokens=6)
    bad = x.clone()
    bad[2, 5] = torch.nan
    bad[4, 7] = torch.inf
    with torch.no_grad():
        return model(x, chosen), model(bad, chosen)


def bytes_of(mesh, rank, **options):
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh, **options)
    return sent_bytes(lambda: step(model, *data_of(rank)))


OTHERS = {
    "wire": ("blockwise", {"wire": "bf16"}),
    "f32": ("blockwise:f32", {}),
    "tensorwise": ("tensorwise", {}),
    "delayed": (ot.Recipe("delayed", warmup=1, history=2), {}),
}


def with_bf16_rows(mesh, rank, name):
    recipe, options = OTHERS[name]
    model = Model(Qwen3MoeExperts, recipe)
    report = expert_parallel(model, mesh, **options)
    made = step(model, *data_of(rank))
    assert ot.update_scales(model) == (2 if name == "delayed" else 0)
    return str(report), made, [whole(p.grad) for p in model.parameters()]


def switched(mesh, rank):
    """Returns results with FP8 switched off, and with a sentry: what it has seen, and whether rows are in FP8."""
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh)
    ot.set_fp8(model, False)
    off = step(model, *data_of(rank))
    ot.set_fp8(model, True)
    watch = ot.sentry(model)
    sent = sent_bytes(lambda: step(model, *data_of(rank)))
    return off, sent, bool(watch.step())


def recomputed(mesh, rank):
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh)
    x, chosen, dy = data_of(rank)
    x = x.requires_grad_()
    y = checkpoint(model, x, chosen, use_reentrant=False)
    y.backward(dy)
    return (y.detach(), x.grad), [whole(p.grad) for p in model.parameters()]


def refusals(mesh, rank):
    """Returns the errors of calls that ranks make differently, and then a result."""
    said = {}
    said["recipe"] = error_of(
        lambda: expert_parallel(Model(Qwen3MoeExperts, ("blockwise", "tensorwise")[rank % 2]), mesh)
    )
    odd = Model(Qwen3MoeExperts)
    odd.experts.octile_gate_up_proj.experts = 7
    said["ranks"] = error_of(lambda: expert_parallel(odd, mesh))
    plain = Model(Qwen3MoeExperts, "blockwise" if rank else None)
    said["plain"] = error_of(lambda: ExpertParallel()._apply(plain.experts, mesh))
    said["none"] = error_of(lambda: expert_parallel(nn.Linear(16, 16), mesh))
    said["style"] = error_of(lambda: ExpertParallel(wire="fp16"))
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh)
    said["again"] = error_of(lambda: expert_parallel(model, mesh))
    x, chosen, dy = data_of(rank, tokens=4)
    with torch.set_grad_enabled(rank != 1):
        said["gradients"] = error_of(lambda: model(x, chosen))
    said["dtype"] = error_of(lambda: model(x.float() if rank == 1 else x, chosen))
    said["columns"] = error_of(lambda: model(x[:, :128] if rank == 1 else x, chosen))
    return said, step(model, x, chosen, dy)[0]


def with_fsdp2(rank, world):
    """Experts on half of the ranks, and each part sharded over two."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "ep"))
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh["ep"])
    fully_shard(model, mesh=mesh["dp"])
    made = train(model, data_of(rank))
    return made, {name: tuple(p.shape) for name, p in model.state_dict().items()}


def names_of(mesh):
    model = Model(GptOssExperts)
    wanted = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    expert_parallel(model, mesh)
    state = model.state_dict()
    return wanted, {name: tuple(p.shape) for name, p in state.items()}, [p.to_local().shape[0] for p in state.values()]


def clipped(rank, world):
    """Returns norms and gradients of clip_grad_norm_ on whole parameters by PyTorch, on experts that are spread, and on
    experts that are spread and sharded, of which some ranks lack a gradient."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    def clip(spread, mesh, norm_type, dp=None):
        model = nn.ModuleDict({"experts": Model(Qwen3MoeExperts), "router": nn.Linear(H, E)}).float()
        if spread:
            expert_parallel(model, mesh)
        if dp is not None:
            fully_shard(model["experts"], mesh=dp)
        generator = torch.Generator().manual_seed(1)
        for name, p in model.named_parameters():
            gradient = torch.randn(p.shape, generator=generator)
            p.grad = gradient
            if isinstance(p, DTensor):
                p.grad = distribute_tensor(gradient, p.device_mesh, p.placements)
            if name == "router.bias":
                p.grad = None
        call = clip_grad_norm_ if spread else nn.utils.clip_grad_norm_
        norm = call(model.parameters(), 2.0, norm_type, foreach=False if norm_type == 1.0 else None)
        return [norm, *(whole(p.grad) for p in model.parameters() if p.grad is not None)]

    meshes = init_device_mesh("cpu", (world,)), init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "ep"))
    norms = (1.0, 2.0, float("inf"))
    plain = [clip(False, None, norm) for norm in norms]
    ways = [[clip(True, meshes[0], norm) for norm in norms]]
    ways.append([clip(True, meshes[1]["ep"], norm, meshes[1]["dp"]) for norm in norms])
    weight = nn.Parameter(distribute_tensor(torch.ones(world, 2), meshes[0], [dist.tensor.Shard(0)]))
    if rank == 0:  # another rank has no gradient
        weight.grad = torch.full_like(weight, 3.0)
    return plain, ways, clip_grad_norm_([weight], 1.0)


def warmed(mesh):
    """Returns the layers that warmup has prepared, and whether it asked for the kernels that send and open messages."""
    model = Model(Qwen3MoeExperts)
    expert_parallel(model, mesh)
    layers = ot.warmup(model, tokens=(1, 64))
    kind = "e4m3:1x128:pow2"
    wanted = [f"quantize rows=? cols={H} x=bf16 q={kind} out=row scales=rows"]
    wanted += [f"gather rows=? cols={H} x={kind} q={kind} out=row"]
    wanted += [f"quantize rows=? cols={H} x={kind} q={kind} out=col group=contiguous"]
    return layers, set(wanted) <= set(ot.problems())


def run_rank(rank, world, folder):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timeout)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,), mesh_dim_names=("ep",))
    results = {"warmup": warmed(mesh)}  # before any call asks for problems
    results |= {name: steps_of(mesh, rank, name) for name in KINDS}
    results["wide"] = [wide_gradients(mesh, rank, Qwen3MoeExperts, afterwards) for afterwards in (False, True)]
    results["biases"] = wide_gradients(mesh, rank, GptOssExperts)
    results["one rank"] = one_rank_has_all(dist.group.WORLD, rank, world)
    results["nan"] = nan_rows(mesh, rank)
    results["bytes"] = [bytes_of(mesh, rank), bytes_of(mesh, rank, wire="bf16")]
    results["others"] = {name: with_bf16_rows(mesh, rank, name) for name in OTHERS}
    results["switched"] = switched(mesh, rank)
    results["recomputed"] = recomputed(mesh, rank)
    results["refusals"] = refusals(mesh, rank)
    results["names"] = names_of(mesh)
    results["fsdp2"] = with_fsdp2(rank, world)
    results["clipped"] = clipped(rank, world)
    torch.save(results, f"{folder}/results{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request, tmp_path_factory):
    """The result of each rank."""
    folder, world = tmp_path_factory.mktemp("ranks"), request.param
    run_ranks(run_rank, (world, str(folder)), world, folder)
    return [torch.load(folder / f"results{rank}.pt", weights_only=False) for rank in range(world)]


@pytest.fixture(autouse=True)
def one_thread():
    """Sizes are so small that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def joined(parts):
    """Returns what all ranks have, one behind the other, of a list of tensors of each."""
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


@pytest.mark.parametrize("name", KINDS)
def test_five_steps_equal_rows_in_bfloat16_that_are_quantised_afterwards(ranks, name):
    for rank in ranks:
        (ours, weights), (theirs, their_weights) = rank[name]
        assert_equal(ours, theirs)
        assert_equal(weights, their_weights)


@pytest.mark.parametrize("name", KINDS)
def test_five_steps_equal_one_process(ranks, name):
    results, weights = train(alone(*KINDS[name]), all_data(len(ranks)))
    assert_equal(joined([rank[name][0][0] for rank in ranks]), results)
    for rank in ranks:
        assert_equal(rank[name][0][1], weights)
    assert not weights[1].equal(next(alone(*KINDS[name]).parameters()))


def test_rounded_rows_equal_those_quantised_afterwards_and_are_near_one_process(ranks):
    for rank in ranks:
        (ours, weights), (theirs, their_weights) = rank["wide"]
        assert_equal(ours + weights, theirs + their_weights)
    (y, dx, scores), weights = wide_step(alone(), range(len(ranks)))
    found_y, found_dx, found_scores = joined([rank["wide"][0][0] for rank in ranks])
    assert found_y.equal(y)
    for ours, theirs in ((found_dx, dx), (found_scores, scores), *zip(ranks[0]["wide"][0][1], weights, strict=True)):
        assert (ours.float() - theirs.float()).norm() <= 0.1 * theirs.float().norm()


def test_gradients_of_biases_are_those_of_all_ranks(ranks):
    _, weights = wide_step(Model(GptOssExperts), range(len(ranks)))
    for rank in ranks:
        for ours, theirs in zip(rank["biases"][1], weights, strict=True):
            assert (ours.float() - theirs.float()).norm() <= 0.1 * theirs.float().norm()


def test_one_rank_may_get_every_row(ranks):
    model = alone()
    x, chosen, dy = all_data(len(ranks))
    wanted = step(model, x, chosen % 2, dy)
    assert_equal(joined([rank["one rank"][0] for rank in ranks]), wanted)
    assert_equal(ranks[0]["one rank"][1], [p.grad for p in model.parameters()])


def test_rows_that_are_not_finite_stay_alone(ranks):
    for rank in ranks:
        good, bad = rank["nan"]
        assert bad[2].isnan().all() and bad[4].isnan().all()
        rest = [0, 1, 3, 5]
        assert bad[rest].equal(good[rest]) and good.isfinite().all()


def test_bytes_are_those_of_messages(ranks):
    ways = [[rank["bytes"][wire] for rank in ranks] for wire in (0, 1)]
    totals = []
    for wire in ways:
        counts, forward, results, backward, gradients = (sum(sent) for sent in zip(*wire, strict=True))
        assert counts == len(ranks) * 8 * (len(ranks) * 6 + E)
        totals.append((forward, results, backward, gradients))
    rows = TOP_K * sum(TOKENS[: len(ranks)])
    bf16 = rows * 2 * H
    assert totals[1] == (bf16,) * 4
    assert totals[0] == (rows * message_bytes(H), bf16, rows * message_bytes(H), bf16)
    assert message_bytes(7168) / (2 * 7168) < 0.52


@pytest.mark.parametrize("name", OTHERS)
def test_other_recipes_send_bfloat16_and_say_so(ranks, name):
    recipe, _ = OTHERS[name]
    why = {
        "wire": "wire is 'bf16'",
        "f32": "scales of recipe blockwise:f32 are not powers of two, so that rows that are quantised twice would "
        "differ",
        "tensorwise": "recipe tensorwise has scales of whole tensors, not of 1x128 blocks",
        "delayed": "recipe delayed has scales of whole tensors, not of 1x128 blocks",
    }[name]
    model = alone(recipe=recipe)
    wanted = step(model, *all_data(len(ranks)))
    found = joined([rank["others"][name][1] for rank in ranks])
    assert found[0].equal(wanted[0])
    # Gradients are multiplied with the scores of a half before they are quantised, not afterwards.
    assert_equal(found[1:], wanted[1:])
    for rank in ranks:
        report, _, gradients = rank["others"][name]
        where = f"8 experts on {len(ranks)} ranks, rows travel in x's dtype"
        assert report == f"1 modules of experts spread, rows of 0 travel in FP8\n  experts: {where}: {why}"
        assert_equal(gradients, [p.grad for p in model.parameters()])


def test_calls_without_fp8_send_bfloat16_and_a_sentry_sees_the_others(ranks):
    model = Model(Qwen3MoeExperts)
    ot.set_fp8(model, False)
    wanted = step(model, *all_data(len(ranks)))
    found = joined([rank["switched"][0] for rank in ranks])
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.float() - theirs.float()).norm() <= 0.01 * theirs.float().norm()
    for rank in ranks:
        _, sent, seen = rank["switched"]
        assert sent == rank["bytes"][0] and not seen


def test_recomputed_calls_are_the_same(ranks):
    model = alone()
    wanted = step(model, *all_data(len(ranks)))
    assert_equal(joined([rank["recomputed"][0] for rank in ranks]), wanted)
    assert_equal(ranks[0]["recomputed"][1], [p.grad for p in model.parameters()])


def test_ranks_that_differ_are_refused_on_every_rank(ranks):
    model = alone()
    for number, rank in enumerate(ranks):
        said, y = rank["refusals"]
        assert said["recipe"].startswith("ValueError: octile: module is ") and "name='tensorwise'" in said["recipe"]
        assert said["ranks"] == (
            f"ValueError: octile: experts is 7; allowed are multiples of {len(ranks)}, the ranks of the mesh"
        )
        if number == 0:
            assert said["plain"] == (
                "TypeError: octile: module is of type Qwen3MoeExperts; allowed is experts that octile.torch.convert "
                "has converted"
            )
        else:
            assert "refused on rank 0 of the group, TypeError: octile: module is of type" in said["plain"]
        assert said["none"].endswith("allowed is a model with experts that octile.torch.convert has converted")
        assert said["style"] == "ValueError: octile: wire is 'fp16'; allowed are 'fp8', 'bf16'"
        assert said["again"].endswith("allowed are experts that are not spread already")
        assert "calls its experts with 144 columns of torch.bfloat16 in FP8, with" in said["gradients"]
        assert "torch.float32" in said["dtype"]
        wanted = (
            "octile: x.shape is (4, 128); allowed is (rows, 144)" if number == 1 else "rank 1 of the expert-parallel"
        )
        assert wanted in said["columns"]
        x, chosen, dy = data_of(number, tokens=4)
        assert y.equal(step(model, x, chosen, dy)[0])


def test_state_dicts_have_the_same_names_and_shapes(ranks):
    for rank in ranks:
        wanted, found, local = rank["names"]
        assert list(found.items()) == list(wanted.items()) and set(local) == {E // len(ranks)}


def test_gradients_are_clipped_by_the_norm_of_all_ranks(ranks):
    for found in ranks:
        plain, ways, of_one = found["clipped"]
        for way in ways:
            for ours, theirs in zip(way, plain, strict=True):
                assert theirs[0] > 2 and len(ours) == len(theirs)
                for a, b in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
        torch.testing.assert_close(of_one, torch.tensor(18.0**0.5))


def test_arguments_of_clip_grad_norm():
    weight = nn.Parameter(torch.ones(2))
    assert clip_grad_norm_(weight, 1.0) == 0 and clip_grad_norm_([], 1.0) == 0
    weight.grad = torch.tensor([3.0, float("inf")])
    with pytest.raises(RuntimeError, match="octile: the norm of the gradients is inf; nothing is scaled"):
        clip_grad_norm_(nn.ParameterList([weight]), 1.0, error_if_nonfinite=True)
    assert weight.grad[0] == 3
    for norm_type in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="octile: norm_type is .*; allowed are numbers above 0"):
            clip_grad_norm_(weight, 1.0, norm_type)
    with pytest.raises(TypeError, match="octile: parameters is of type str"):
        clip_grad_norm_(["w"], 1.0)


def test_warmup_prepares_what_travels_too(ranks):
    assert all(rank["warmup"] == (2, True) for rank in ranks)


def test_fsdp2_shards_what_expert_parallelism_leaves(ranks):
    for rank in ranks:
        assert set(rank["fsdp2"][1]) == {"experts.gate_up_proj", "experts.down_proj"}
    model = alone()
    wanted = step(model, *all_data(len(ranks)))
    found = joined([rank["fsdp2"][0][0][:2] for rank in ranks])
    assert_equal(found, wanted)


def test_messages_hold_codes_and_scales():
    kind = as_recipe("blockwise").activation
    x = torch.randn(5, H).bfloat16()
    messages = ops.quantize_messages(x, kind.text)
    assert messages.shape == (5, message_bytes(H)) == (5, 160)
    order = torch.tensor([4, 0, 0, 3], dtype=torch.int32)
    codes, scales = ops.open_messages(messages, order, kind.text, H)
    wanted = torch.ops.octile.quantize_one(x[order], kind.text, False)
    assert codes.view(torch.uint8).equal(wanted[0].view(torch.uint8)) and scales.equal(wanted[1].view(-1))
