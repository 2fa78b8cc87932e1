"""The work of each rank of test_sharding.py: checks of models whose weights travel in FP8, by their names."""

import io
import os
import random
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from writes import WAYS, memory

import octile.torch as ot
from octile.torch import distributed as od

BF16 = torch.bfloat16


class Gated(nn.Module):
    """An MLP that ``convert`` fuses."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((48, 128), (48, 128), (128, 48)))

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Siblings with one input, a fused MLP, and a layer whose 16 rows leave the last of five ranks without any."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.mlp = nn.Linear(48, 144), nn.Linear(48, 144, bias=False), Gated()
        self.o, self.last = nn.Linear(144, 48, bias=False), nn.Linear(48, 16, bias=False)

    def forward(self, x):
        x = torch.tanh(x)
        return self.last(self.mlp(self.o(self.q(x) * self.k(x))))


def model_of(recipe="blockwise", dtype=torch.float32, second=None, meta=False):
    torch.manual_seed(0)
    with torch.device("meta" if meta else "cpu"):
        model = nn.Sequential(nn.Linear(80, 48, bias=False), Block(), nn.LayerNorm(16)).to(dtype)
    ot.convert(
        model, recipe, min_dims=16, preset="all-linear", filter=lambda name, _: second is None or "last" not in name
    )
    if second is not None:
        ot.convert(model, second, min_dims=16, preset="all-linear", filter=lambda name, _: "last" in name)
    return model


def sharded(travels, recipe="blockwise", dtype=torch.float32, param_dtype=BF16, second=None, mesh=None, meta=False,
            **options):  # fmt: skip
    """Returns a sharded model, and what ``shard_fp8`` did."""
    model = model_of(recipe, dtype, second, meta)
    sharding = od.shard_fp8(model) if travels else None
    options |= {"mp_policy": MixedPrecisionPolicy(param_dtype=param_dtype), "mesh": mesh}
    for part in (model[0], model[1]):
        fully_shard(part, **options)
    fully_shard(model, **options)
    return model, sharding


def batch(step, microbatch=0):
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + 10 * step + microbatch)
    return torch.randn(7, 80, generator=generator)


def local(tensor):
    return tensor.to_local().detach().clone() if isinstance(tensor, DTensor) else tensor.detach().clone()


def train(model, optimizer, steps, microbatches=1, call=None):
    """Returns losses and gradients of each step, and then the masters."""
    results = []
    for step in steps:
        for microbatch in range(microbatches):
            model.set_requires_gradient_sync(microbatch == microbatches - 1)
            x = batch(step, microbatch)
            loss = (call or model)(x).float().square().mean()
            loss.backward()
            results.append(loss.detach())
        results += [local(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return results + masters(model)


def masters(model):
    return [local(p) for p in model.parameters()]


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def same(a, b):
    bits = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
    return len(a) == len(b) and all(
        p.dtype == q.dtype and p.view(bits[p.element_size()]).equal(q.view(bits[q.element_size()]))
        for p, q in zip(a, b, strict=True)
    )


def alike(steps=2, microbatches=1, optimizer=adamw, compiled=False, checkpointing=False, **options):
    """Returns the ``Sharding`` of a run that gathers FP8, which has the bits of one that gathers the weights."""
    results = []
    for travels in (False, True):
        model, sharding = sharded(travels, **options)
        if compiled and travels:
            model[1].compile(backend="aot_eager", fullgraph=True)
        call = (lambda x, m=model: checkpoint(m, x, use_reentrant=False)) if checkpointing else None
        results.append(train(model, optimizer(model), range(steps), microbatches, call))
    assert same(*results)
    return sharding


# ---- bits


def bits():
    for recipe in ("blockwise", "tensorwise", "blockwise_hybrid:f32"):
        assert alike(recipe=recipe).quantizations == 2
    alike(param_dtype=None, reshard_after_forward=False)
    alike(dtype=BF16, recipe="tensorwise:f32")
    alike(dtype=BF16, param_dtype=torch.float32)
    # Each forward pass quantises, and its backward pass moves the same codes.
    sharding = alike(microbatches=3, reshard_after_forward=False, optimizer=lambda m: adamw(m, fused=True))
    assert sharding.quantizations == 6
    alike(checkpointing=True, second="rowwise")  # whose weights travel as before, beside codes


def some_bits():
    alike(second="tensorwise")
    alike(dtype=BF16, recipe="blockwise:f32", reshard_after_forward=False)


def compiled_blocks():
    alike(compiled=True, steps=1)


def replicas():
    world = dist.get_world_size()
    for replicated in (2, 4) if world == 4 else (2,):
        shape = (replicated, world // replicated)
        alike(mesh=dist.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))


def codes_of_whole_weights():
    """Codes and scales are those of the whole rounded master, NaN and infinite elements included."""
    for recipe in ("blockwise", "tensorwise"):
        model, sharding = sharded(True, recipe)
        layer = model[0]
        weight = layer.weight
        whole = weight.detach().full_tensor().clone()
        whole[3, 5], whole[40, 70], whole[47, 79] = torch.nan, torch.inf, 1e30
        with torch.no_grad():
            weight.copy_(distribute_tensor(whole, weight.device_mesh, weight.placements))
        layer.unshard()
        codes = torch.empty(48, 80, dtype=torch.float8_e4m3fn)
        scales = torch.empty(layer.weight.scales.shape)
        torch.ops.octile.quantize_weight(whole.bfloat16(), layer.recipe.code, codes, scales)
        assert same([layer.weight.codes, layer.weight.scales], [codes, scales])
        assert layer.weight.dtype == BF16 and layer.weight.shape == (48, 80)
        layer.reshard()
        assert sharding.quantizations == 1


def meta_device():
    reference, _ = sharded(True)
    model, sharding = sharded(True, meta=True)
    assert "fully_shard has sharded 8 of them" in str(sharding)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            p.copy_(q)
    results = [train(m, adamw(m), range(2)) for m in (reference, model)]
    assert same(*results)
    # Loaded by assignment, on ranks whose shards are padded too.
    model.load_state_dict({name: p * 2 for name, p in reference.state_dict().items()}, assign=True)
    with torch.no_grad():
        for p in reference.parameters():
            p.mul_(2)
    assert same(*(train(m, adamw(m), [3]) for m in (reference, model)))


#: Ways to write all weights of a model at once. test_writes.py has every way, of one layer.
WAYS_OF_MODELS = ("foreach of local tensors", "the state in place", "a collective", "an optimizer", "load_state_dict")


def writes():
    """Ways to write masters are seen by the next forward pass, whether all ranks write or one."""
    model, _ = sharded(True)
    reference, _ = sharded(False)
    for name in WAYS_OF_MODELS:
        for writes_here in (True, dist.get_rank() == 0):
            for evaluates in (True, False):
                reset(model, reference)
                results = []
                for one in (model, reference):
                    y = run(one, evaluates)
                    one.reshard()  # which FSDP2 leaves to backward
                    with torch.no_grad():
                        if writes_here:
                            WAYS[name](one)
                    results.append([y, run(one, evaluates)])
                assert same(*results), (name, writes_here, evaluates)


def run(model, evaluates):
    model.train(not evaluates)
    with torch.set_grad_enabled(not evaluates):
        y = model(batch(0))
    if not evaluates:
        y.sum().backward()
    return y.detach().clone()


def reset(*models):
    """Gives models first weights again."""
    for model in models:
        model.reshard()
        for i, p in enumerate(model.parameters()):
            p.grad = None
            generator = torch.Generator().manual_seed(100 * dist.get_rank() + i)
            part = memory(p).detach()
            part.copy_(torch.randn(part.shape, generator=generator) * 0.1)


def trusted():
    """Weights that are trusted are quantised behind steps, and where they are told."""
    model, sharding = sharded(True)
    ot.trust_weights(model)
    optimizer = adamw(model)
    with torch.no_grad():
        for expected in (1, 1):
            model(batch(0))
            model.reshard()
            assert sharding.quantizations == expected
    for expected in (2, 3):
        train(model, optimizer, range(1))
        model.reshard()
        with torch.no_grad():
            model(batch(0))
            model.reshard()
        assert sharding.quantizations == expected, sharding.quantizations
    ot.weights_changed()
    with torch.no_grad():
        model(batch(0))
    assert sharding.quantizations == 4


def inner_modules():
    """Without a call of the model, the second gather of a weight begins a pass."""
    model, _ = sharded(True)
    reference, _ = sharded(False)
    results = []
    for one in (model, reference):
        made = []
        with torch.no_grad():
            for _ in range(3):
                made.append(one[0](batch(0)))
                one[0].reshard()
                for p in one[0].parameters():
                    memory(p).data.mul_(0.5)
        results.append(made)
    assert same(*results)


# ---- what is moved and launched


class Moved:
    """Bytes that collectives move while it is entered: what c10d is given."""

    NAMES = ("all_gather_into_tensor", "all_reduce")

    def __enter__(self):
        self.bytes = dict.fromkeys(self.NAMES, 0)
        self.before = {name: getattr(dist, name) for name in self.NAMES}
        for name in self.NAMES:
            setattr(dist, name, self.counted(name))
        dist.distributed_c10d.all_reduce = dist.all_reduce
        return self

    def counted(self, name):
        def call(tensor, *args, **kwargs):
            self.bytes[name] += tensor.numel() * tensor.element_size()
            return self.before[name](tensor, *args, **kwargs)

        return call

    def __exit__(self, *_):
        for name in self.NAMES:
            setattr(dist, name, self.before[name])
        dist.distributed_c10d.all_reduce = dist.all_reduce


def bytes_on_the_wire():
    moved = {}
    for travels in (False, True):
        model = nn.Sequential(nn.Linear(512, 256, bias=False), nn.Linear(256, 512, bias=False))
        ot.convert(model, min_dims=16, preset="all-linear")
        if travels:
            od.shard_fp8(model)
        for layer in model:
            fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=BF16))
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=BF16))
        x, optimizer = torch.randn(16, 512), adamw(model)
        model(x).float().square().mean().backward()
        optimizer.step()
        with Moved() as moved[travels]:
            model(x).float().square().mean().backward()
    # Forward gathers both, backward the first again at least: FSDP2 keeps the last one.
    theirs, ours = (moved[travels].bytes for travels in (False, True))
    rows = -(-256 // dist.get_world_size()) * dist.get_world_size()
    assert ours["all_gather_into_tensor"] >= 512 * (rows + 512)
    assert 2 * ours["all_gather_into_tensor"] == theirs["all_gather_into_tensor"]
    assert theirs["all_reduce"] == 0 and 0 < ours["all_reduce"] < 0.02 * ours["all_gather_into_tensor"]


class Counted(TorchDispatchMode):
    """Counts operators that launch something."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def launches():
    model, sharding = sharded(True, second="tensorwise")
    model(batch(0))
    with Counted() as counted:
        sharding.quantize()
    wanted = [
        "aten.zero_.default",
        "octile.run_pieces.default",
        "c10d.allreduce_.default",
        *["octile.run_pieces.default"] * 2,
    ]
    assert counted.names == 2 * wanted, counted.names


def warmed():
    """A step asks for no kernel that ``warmup`` has not asked for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 208, bias=False), nn.Linear(208, 112))  # sizes of no other check
    ot.convert(model, min_dims=16, preset="all-linear")
    od.shard_fp8(model)
    policy = MixedPrecisionPolicy(param_dtype=BF16)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    assert ot.warmup(model, (256, 256)) == 2
    asked = set(ot.problems())
    with Counted() as counted:
        model(torch.randn(256, 96, requires_grad=True)).square().mean().backward()
    assert "octile.make_pieces.default" not in counted.names
    assert not set(ot.problems()) - asked, set(ot.problems()) - asked


# ---- checkpoints


def states(folder):
    """Saves a run with AdamW, its next step's results, and the model's whole state."""
    model, _ = sharded(True)
    optimizer = adamw(model)
    train(model, optimizer, range(2))
    state = model.state_dict()
    assert list(state) == list(model_of().state_dict())
    assert all(type(value) is DTensor and type(value._local_tensor) is torch.Tensor for value in state.values())
    for kept in (state, dict(model.named_parameters()), optimizer.state_dict()):
        file = io.BytesIO()
        torch.save(kept, file)
        assert b"octile" not in file.getvalue()
    dcp.save({"model": state, "optimizer": optimizer.state_dict()}, checkpoint_id=folder)
    whole = [p.full_tensor() for p in model.parameters()]
    plain = model_of()
    plain.load_state_dict(dict(zip(state, whole, strict=True)))
    exported = [list(ot.block_fp8_state_dict(one).values()) for one in (model, plain)]
    assert same(*exported)
    after = train(model, optimizer, [2])

    again, _ = sharded(True)
    its = adamw(again)
    train(again, its, [7])  # which makes its state
    resumed = {"model": again.state_dict(), "optimizer": its.state_dict()}
    dcp.load(resumed, checkpoint_id=folder)
    again.load_state_dict(resumed["model"])
    its.load_state_dict(resumed["optimizer"])
    assert same(train(again, its, [2]), after)
    return whole


def load(folder, whole):
    """Loads what another number of ranks has saved, in place and into a model that gathers its weights."""
    results = []
    for travels in (True, False):
        model, _ = sharded(travels)
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=folder)  # and no load_state_dict
        assert same([p.full_tensor() for p in model.parameters()], whole)
        results.append(train(model, adamw(model), [2]))
    assert same(*results)


# ---- flat ranges


def flat_ranges():
    """Any cuts of a flat buffer give the codes and scales of whole weights, on ranks that hold nothing too."""
    rank, world = dist.get_rank(), dist.get_world_size()
    cases = (
        ("blockwise", torch.float32),
        ("tensorwise", BF16),
        ("blockwise:f32", BF16),
        ("tensorwise:f32", torch.float32),
    )
    for trial, (recipe, dtype) in enumerate(cases):
        random.seed(trial)  # the same cuts on all ranks
        shapes = [(48, 80), (144, 272), (16, 16), (272, 144)]
        offsets, end = [], 0
        for n, k in shapes:
            offsets.append(end)
            end += n * k + 16 * trial  # gaps and a tail, as of padding
        cuts = sorted([0, end, *(random.randrange(end + 1) for _ in range(world - 1))])
        cuts[1] = 0 if trial == 1 else cuts[1]  # the first rank has nothing
        flat = torch.randn(end, generator=torch.Generator().manual_seed(trial)).to(dtype)
        flat[7], flat[offsets[1] + 9], flat[offsets[3] + 1] = torch.nan, torch.inf, -1e30
        master, gathered = flat[cuts[rank] : cuts[rank + 1]].clone(), torch.zeros(end, dtype=torch.uint8)
        shards = od.FlatShards(shapes, cuts[rank], master, gathered, recipe, offsets=offsets)
        weights = shards.weights()
        for factor in (1, 3):
            master.copy_(flat[cuts[rank] : cuts[rank + 1]] * factor)
            shards.quantize()
            for owner, part in enumerate(gathered.split(torch.tensor(cuts).diff().tolist())):
                dist.broadcast(part, owner)
            for weight, at, (n, k) in zip(weights, offsets, shapes, strict=True):
                values = (flat[at : at + n * k] * factor).view(n, k).bfloat16()
                wanted = torch.empty(n, k, dtype=torch.float8_e4m3fn), torch.empty(weight.scales.shape)
                torch.ops.octile.quantize_weight(values, ot.recipes.as_recipe(recipe).code, *wanted)
                assert same([weight.codes, weight.scales], wanted), (recipe, factor, n)


# ---- refusals


def refusal(call, kind=ValueError):
    """Returns what a call is refused with."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("was not refused")


def refusals():
    rank = dist.get_rank()

    def of_other_ranks():
        sharded(True, recipe="blockwise" if rank == 0 else "tensorwise")

    assert refusal(of_other_ranks).startswith(
        "octile: model is '0.weight [48, 80] e4m3:128x128:pow2 on rank 0 of the group, 0.weight [48, 80] "
        "e4m3:tensor:pow2 on rank 1'; allowed is the same on all ranks"
    )
    shapes = [(16, 16)] if rank == 0 else [(16, 16), (16, 16)]
    shards = od.FlatShards(shapes, 0, torch.zeros(256), torch.zeros(512, dtype=torch.uint8))
    assert "on rank 0 of the group, weight 1 of [16, 16] at 256" in refusal(shards.quantize)
    assert "the placements of 0.weight is '(Shard(dim=1),)'; allowed are (Shard(dim=0),)" in refusal(
        lambda: sharded(True, shard_placement_fn=lambda p: Shard(p.dim() - 1))
    )

    def first_pass(**options):
        model, _ = sharded(True, **options)
        return lambda: model(batch(0))

    assert "0.weight is offloaded to the CPU, and travels in FP8" in refusal(
        first_pass(offload_policy=CPUOffloadPolicy(pin_memory=False)), NotImplementedError
    )
    assert (
        "param_dtype is torch.float16; allowed are torch.float32 and torch.bfloat16 with masters of torch"
        in refusal(first_pass(param_dtype=torch.float16))
    )
    model = model_of()
    od.shard_fp8(model[0])
    fully_shard(model)
    assert refusal(lambda: model(batch(0))) == (
        "octile: model is 'one without the module that shards weight'; allowed is, for shard_fp8, the module that "
        "fully_shard was called with, or one around it"
    )
    assert "0.weight is 'DTensor'; allowed is a plain tensor: call shard_fp8 before" in refusal(
        lambda: od.shard_fp8(model)
    )
    model = model_of()
    od.shard_fp8(model)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    simple = nn.Parameter(distribute_tensor(model[0].weight.detach(), mesh, [Shard(0)]))
    assert "not SimpleFSDP or parallelize_module" in refusal(lambda: model[0].register_parameter("weight", simple))


def resharded_in_part():
    """Asks four ranks for groups of two, which is refused."""
    model, _ = sharded(True, reshard_after_forward=2)
    told = refusal(lambda: model(batch(0)))
    assert "reshard_after_forward is 2; allowed are True and False, because 0.weight travels in FP8" in told


# ---- ranks

CHECKS = {
    "bits": bits,
    "compiled_blocks": compiled_blocks,
    "replicas": replicas,
    "codes_of_whole_weights": codes_of_whole_weights,
    "meta_device": meta_device,
    "writes": writes,
    "trusted": trusted,
    "inner_modules": inner_modules,
    "bytes_on_the_wire": bytes_on_the_wire,
    "launches": launches,
    "warmed": warmed,
    "flat_ranges": flat_ranges,
    "refusals": refusals,
    "some_bits": some_bits,
    "resharded_in_part": resharded_in_part,
}


def begin(rank, world, folder, seconds=30):
    torch.set_num_threads(1)
    where = f"file://{folder}/store{world}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))


def run_checks(rank, world, folder, names):
    """Writes the names of the checks that hold on this rank, and what was wrong with the one that did not."""
    begin(rank, world, folder)
    said = Path(folder, f"{world}-{rank}.txt").open("a", buffering=1)
    for name in names:
        try:
            if name == "save":
                whole = states(f"{folder}/checkpoint")
                torch.save(whole, f"{folder}/whole.pt") if rank == 0 else None
            elif name == "load":
                load(f"{folder}/checkpoint", torch.load(f"{folder}/whole.pt"))
            else:
                CHECKS[name]()
        except BaseException:
            said.write(f"FAILED {name}: {traceback.format_exc()}")
            os._exit(1)  # others hear of it by their connections
        said.write(name + "\n")
    dist.barrier()
    dist.destroy_process_group()


def lose_a_rank(rank, world, folder):
    """The last rank ends within a step; the others write what their next step raises, and after how long."""
    begin(rank, world, folder, seconds=5)
    model, _ = sharded(True)
    train(model, adamw(model), [0])
    if rank == world - 1:
        os._exit(0)
    at = time.monotonic()
    try:
        for step in range(1, 4):
            train(model, adamw(model), [step])
    except RuntimeError as error:
        Path(folder, f"error-{rank}.txt").write_text(f"{time.monotonic() - at:.1f} {error}")
    os._exit(0)
