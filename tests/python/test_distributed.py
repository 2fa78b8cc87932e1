"""Two processes that share the work of one, by gloo: the bits of the weights are those of one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import octile.torch as ot

STEPS, TOKENS = 3, (77, 40)  # two microbatches


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(ot.Linear(64, 128), nn.GELU(), ot.Linear(128, 32, recipe="rowwise"))


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [[torch.randn(t, 64, generator=generator) for t in TOKENS] for _ in range(STEPS)]


def loss_of(model, x):
    return model(x).square().mean()


def train(model, microbatches, last_microbatch=lambda last: None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in microbatches:
        for index, x in enumerate(step):
            last_microbatch(index == len(step) - 1)
            loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_alone():
    """Does what the two ranks do, one after the other, and averages their gradients."""
    model = model_of()
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


def with_fsdp2(rank, reshard):
    from torch.distributed.fsdp import fully_shard

    model = model_of()
    for layer in (model[0], model[2]):
        fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(model)
    train(model, batches(rank), model.set_requires_gradient_sync)
    assert list(model.state_dict()) == list(model_of().state_dict())
    return [p.detach().full_tensor() for p in model.parameters()]


WAYS = {
    "ddp": with_ddp,
    "fsdp2": lambda rank: with_fsdp2(rank, True),
    "fsdp2 without resharding": lambda rank: with_fsdp2(rank, False),
}


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {name: way(rank) for name, way in WAYS.items()}
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run_rank, (str(folder),), nprocs=2)
    return torch.load(folder / "results.pt")


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_equal_one(results, way):
    alone, start = train_alone(), list(model_of().parameters())
    for ours, wanted, before in zip(results[way], alone, start, strict=True):
        assert ours.equal(wanted) and not ours.equal(before)


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
