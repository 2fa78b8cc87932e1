"""Two processes that share the work of one, by gloo: the bits of the weights are those of one process."""

import warnings

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from test_norms import Norm
from torch import nn
from torch.utils.checkpoint import checkpoint

import octile.torch as ot
from octile.torch.specialised import restore

STEPS, TOKENS = 3, (77, 40)  # two microbatches


DELAYED = ot.Recipe("delayed", warmup=1, history=2)


def model_of(seed=0, first="blockwise", second="rowwise"):
    torch.manual_seed(seed)
    return nn.Sequential(ot.Linear(64, 128, recipe=first), nn.GELU(), ot.Linear(128, 32, recipe=second))


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [[torch.randn(t, 64, generator=generator) for t in TOKENS] for _ in range(STEPS)]


def loss_of(model, x):
    return model(x).square().mean()


def train(model, microbatches, last_microbatch=lambda last: None, after_step=lambda: None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in microbatches:
        for index, x in enumerate(step):
            last_microbatch(index == len(step) - 1)
            loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()


def train_alone(model):
    """Does what the two ranks do, one after the other, and averages their gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for steps in zip(batches(0), batches(1), strict=True):
        gradients = []
        for step in steps:
            for x in step:
                loss_of(model, x).backward()
            gradients.append([p.grad for p in model.parameters()])
            optimizer.zero_grad()
        for p, a, b in zip(model.parameters(), *gradients, strict=True):
            p.grad = (a + b) / 2
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def with_ddp(rank):
    model = model_of(seed=rank)  # DDP takes rank 0's weights
    wrapped = nn.parallel.DistributedDataParallel(model)
    train(wrapped, batches(rank), lambda last: setattr(wrapped, "require_backward_grad_sync", last))
    return [p.detach() for p in model.parameters()]


def counts():
    """How many times weights were quantised so far, and how many copies that made."""
    return torch.tensor([torch.ops.octile.weight_quantizations(), torch.ops.octile.weight_copies_made()])


def with_fsdp2(rank, reshard, way=""):
    """Returns the weights, and the counts of each step."""
    from torch.distributed.fsdp import fully_shard

    model = model_of()
    for layer in (model[0], model[2]):
        if way == "compiled":
            layer.compile(backend="aot_eager", fullgraph=True)
        fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(model)
    watched, made = [counts()], model.forward
    if "checkpointing" in way:
        # A reentrant one hears of gradients by its input.
        model.forward = lambda x: checkpoint(made, x.requires_grad_("re" in way), use_reentrant="re" in way)

    def between(last):
        model.set_requires_gradient_sync(last)
        if way == "gathered throughout":
            model.set_reshard_after_backward(last)

    train(model, batches(rank), between, lambda: watched.append(counts()))
    assert list(model.state_dict()) == list(model_of().state_dict())
    each = torch.stack(watched).diff(dim=0).tolist()
    return [p.detach().full_tensor() for p in model.parameters()], each


def with_written_shards(rank, reshard):
    """Returns outputs before and after the shards were halved in place, which PyTorch counts."""
    from torch.distributed.fsdp import fully_shard

    model, x = model_of(), batches(0)[0][0]
    for layer in (model[0], model[2]):
        fully_shard(layer, reshard_after_forward=reshard)
    outputs = []
    for _ in range(2):
        loss_of(model, x).backward()
        with torch.no_grad():
            outputs.append(model(x))
            for layer in (model[0], model[2]):
                layer.reshard()
            for parameter in model.parameters():
                parameter.mul_(0.5)
    return outputs


class Routed(nn.Module):
    """Experts that take equal parts of the tokens, but for the second, which has none."""

    def __init__(self, recipe):
        super().__init__()
        torch.manual_seed(0)
        self.experts = ot.Experts(3, 64, 32, recipe=recipe)

    def forward(self, x):
        return self.experts(x, torch.tensor([len(x) // 2, len(x) // 2, len(x)], dtype=torch.int32))


def with_sharded_experts(rank, reshard, recipe):
    """Returns the weights, the counts of each step, and what a sentry says of functions' weights that are sharded."""
    from torch.distributed.fsdp import fully_shard

    model = Routed(recipe)
    if recipe == DELAYED:
        ot.reduce_scales(model)
    fully_shard(model.experts, reshard_after_forward=reshard)
    fully_shard(model)
    watched = [counts()]
    train(model, batches(rank), model.set_requires_gradient_sync, lambda: watched.append(counts()))
    said = ""
    try:
        ot.sentry(model, weights=["*.weight"])
    except ValueError as refused:
        said = str(refused)
    return [p.detach().full_tensor() for p in model.parameters()], torch.stack(watched).diff(dim=0).tolist(), said


class Gated(nn.Module):
    """An MLP whose activation a quantiser computes."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128, bias=False), nn.Linear(128, 32)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """The MLP behind a norm, whose result is not kept but quantised again in backward."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = Norm(64), Gated()

    def forward(self, x):
        return self.mlp(self.norm(x))


def gated_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), Block())
    report = ot.convert(model, min_dims=16, preset="all-linear")
    assert report.fused == ["1.mlp"] and report.norms == ["1.norm"]
    return model


def with_gated_mlp(rank, way):
    """Returns the weights, and whether calls took the way of a fused MLP and quantised a norm's result again."""
    from torch.distributed.fsdp import fully_shard

    model = gated_model()
    wrapped = nn.parallel.DistributedDataParallel(model) if way == "ddp" else model
    if way == "blocks":  # the norm's weight is freed before the MLP's backward runs
        fully_shard(model[1].norm)
        fully_shard(model[1])
    elif way == "layers":  # whose hooks gather them, so that each computes itself and gets another tensor
        for layer in model[1].mlp.children():
            fully_shard(layer)
    if way != "ddp":
        fully_shard(model)
    sync = (
        model.set_requires_gradient_sync
        if way != "ddp"
        else lambda last: setattr(wrapped, "require_backward_grad_sync", last)
    )
    train(wrapped, batches(rank), sync)
    seen = [any(source in text for text in ot.problems()) for source in ("src=silu_mul", "src=rmsnorm_again")]
    return [p.detach() if way == "ddp" else p.detach().full_tensor() for p in model.parameters()], seen


def with_shared_scales(rank, shard):
    """Delayed scaling whose maxima are reduced: weights, and then the scales of this rank."""
    from torch.distributed.fsdp import fully_shard

    model = model_of(first=DELAYED, second=DELAYED)
    assert ot.reduce_scales(model) == 2
    if shard:
        wrapped = fully_shard(model)
        train(model, batches(rank), model.set_requires_gradient_sync)
    else:
        wrapped = nn.parallel.DistributedDataParallel(model)
        train(wrapped, batches(rank), lambda last: setattr(wrapped, "require_backward_grad_sync", last))
    layers = model[0], model[2]
    everyones = [torch.empty(2, 6) for _ in range(2)]
    dist.all_gather(everyones, torch.stack([layer._scaling.values[:6] for layer in layers]))
    parameters = [p.detach().full_tensor() if shard else p.detach().clone() for p in model.parameters()]
    steps = [layer._scaling.steps for layer in layers]
    with torch.no_grad():  # others
        model[0].weight.mul_(4)
    train(wrapped, batches(rank)[:1])
    return parameters, everyones, steps, [layer._scaling.steps for layer in layers]


def with_sentry(rank):
    """A NaN in rank 0's first microbatch of the second step. Returns how often this rank repeated, and its weights."""
    model = model_of()
    wrapped = nn.parallel.DistributedDataParallel(model)
    watch, optimizer = ot.sentry(model), torch.optim.SGD(model.parameters(), lr=1e-2)
    for step, microbatches in enumerate(batches(rank)):
        inputs = [microbatches[0].clone(), microbatches[0]]
        inputs[0][1, 2] = torch.nan if (rank, step) == (0, 1) else inputs[0][1, 2]

        def closure(inputs=inputs):
            optimizer.zero_grad()
            loss_of(wrapped, inputs.pop(0)).backward()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            watch.run(closure)
        assert not watch.found_nonfinite
        optimizer.step()
    everyones = [torch.empty(1) for _ in range(2)]
    dist.all_gather(everyones, torch.tensor([float(watch.repeated)]))
    return everyones, watch.counts["0"].output, [p.detach() for p in model.parameters()]


# For each: whether weights are freed after forward, and the rest of the way.
FSDP2 = {
    "fsdp2": (True, ""),
    "fsdp2 with checkpointing": (True, "checkpointing"),
    "fsdp2 with reentrant checkpointing": (True, "reentrant checkpointing"),
    "fsdp2 without resharding": (False, ""),
    "fsdp2 without resharding, with checkpointing": (False, "checkpointing"),
    "fsdp2 without resharding, compiled": (False, "compiled"),
    "fsdp2 without any resharding": (False, "gathered throughout"),
}


EXPERTS = [(True, "blockwise"), (False, "blockwise"), (False, DELAYED)]


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    fsdp2 = {name: with_fsdp2(rank, *way) for name, way in FSDP2.items()}
    results = {"ddp": with_ddp(rank)} | {name: weights for name, (weights, _) in fsdp2.items()}
    results["counts"] = {name: each for name, (_, each) in fsdp2.items()}
    results["experts"] = {way: with_sharded_experts(rank, *way) for way in EXPERTS}
    results["gated"] = {way: with_gated_mlp(rank, way) for way in ("layers", "blocks", "ddp")}
    results["written"] = {reshard: with_written_shards(rank, reshard) for reshard in (False, True)}
    results["scales"] = {shard: with_shared_scales(rank, shard) for shard in (False, True)}
    results["sentry"] = with_sentry(rank)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(run_rank, (str(folder),), 2, folder)
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.parametrize("way", ["ddp", *FSDP2])
def test_two_processes_equal_one(results, way):
    alone, start = train_alone(model_of()), list(model_of().parameters())
    for ours, wanted, before in zip(results[way], alone, start, strict=True):
        assert ours.equal(wanted) and not ours.equal(before)


@pytest.mark.parametrize("way", [name for name, (reshard, _) in FSDP2.items() if not reshard])
def test_gathered_weights_are_quantised_once_a_step(results, way):
    # The first layer's input needs no gradient, so of its weight nobody needs the transposed copy.
    assert results["counts"][way] == [[2, 3]] * STEPS


def test_weights_that_are_freed_between_passes_have_no_copy_made_twice(results):
    # A microbatch: one copy of the first layer, and one in each pass of the second.
    first, *rest = results["counts"]["fsdp2"]
    assert rest == [[3 * len(TOKENS)] * 2] * (STEPS - 1)
    assert first == [3 * len(TOKENS), 3 * len(TOKENS) + 1]  # the first forward pass knows nothing yet


def test_checkpointing_makes_no_more_copies_than_it_needs(results):
    # Forward runs twice, and the second layer's backward once.
    first, *rest = results["counts"]["fsdp2 with checkpointing"]
    assert rest == [[5 * len(TOKENS)] * 2] * (STEPS - 1) and first == [5 * len(TOKENS), 5 * len(TOKENS) + 1]
    # Here it runs first without gradients, and then for both passes. The first layer's input has a gradient.
    reentrant = results["counts"]["fsdp2 with reentrant checkpointing"]
    assert reentrant == [[4 * len(TOKENS), 6 * len(TOKENS)]] * STEPS


@pytest.mark.parametrize("way", EXPERTS)
def test_sharded_experts_equal_those_of_one_process(results, way):
    weights, each, said = results["experts"][way]
    reshard, recipe = way
    assert weights[0].equal(train_alone(Routed(recipe))[0])
    # Their input needs no gradient, so nobody needs the transposed copy, and backward none at all.
    assert each[1:] == [[2, 2] if reshard else [1, 1]] * (STEPS - 1)
    assert said == (
        "octile: weights: type of 'experts.weight' is 'DTensor'; allowed is Parameter; FSDP2's are watched in Linear "
        "and Experts"
    )


@pytest.mark.parametrize("way", ["layers", "blocks", "ddp"])
def test_gated_mlps_equal_those_of_one_process(results, way):
    weights, seen = results["gated"][way]
    model = gated_model()
    if way == "layers":
        restore(model[1].mlp)
    assert seen == [way != "layers"] * 2
    assert all(ours.equal(wanted) for ours, wanted in zip(weights, train_alone(model), strict=True))


@pytest.mark.parametrize("reshard", [False, True])
def test_writes_to_shards_are_seen(results, reshard):
    first, second = results["written"][reshard]
    model = model_of()
    with torch.no_grad():
        assert first.equal(model(batches(0)[0][0]))
        for parameter in model.parameters():
            parameter.mul_(0.5)
        assert second.equal(model(batches(0)[0][0]))


@pytest.mark.parametrize("shard", [False, True])
def test_ranks_share_delayed_scales(results, shard):
    parameters, everyones, steps, later = results["scales"][shard]
    model = model_of(first=DELAYED, second=DELAYED)
    alone = train_alone(model)
    assert all(ours.equal(wanted) for ours, wanted in zip(parameters, alone, strict=True))
    wanted = torch.stack([layer._scaling.values[:6] for layer in (model[0], model[2])])
    assert model[0]._scaling.steps == STEPS and all(values.equal(wanted) for values in everyones)
    assert steps == [STEPS, STEPS] and later == [1, STEPS + 1]


def test_ranks_repeat_a_step_together(results):
    repeated, bad_outputs, weights = results["sentry"]
    assert repeated == [1, 1] and bad_outputs == 1
    assert all(weight.isfinite().all() for weight in weights)


def test_a_child_of_fork_makes_its_own_handles():
    model, x = model_of(), torch.randn(9, 64)
    with torch.no_grad():
        wanted = model(x)
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()

    def child():
        torch.set_num_threads(1)
        with torch.no_grad():
            queue.put(model(x).numpy().tobytes())

    process = torch.multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0 and queue.get() == wanted.numpy().tobytes()
