"""Every way to write every kind of weight, in eager and compiled passes, with gradients and without: weights of this
process and, over gloo, those that ranks share."""

import copy
import datetime

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from writes import BEFORE, MOVES, WAYS, expected, first_line, memory, weights, word_of

import octile.torch as ot
from octile.torch import distributed as od

E, N, K = 2, 64, 128


def same(a, b):
    return len(a) == len(b) and all(p.equal(q) for p, q in zip(a, b, strict=True))


# ---- weights of one process


def layer_of(experts, dtype=torch.float32):
    return ot.Experts(E, K, N, dtype=dtype) if experts else ot.Linear(K, N, bias=False, dtype=dtype)


def cached(experts):
    layer = layer_of(experts)
    return layer, copy.deepcopy(layer)


def trusted(experts):
    layer, fresh = cached(experts)
    ot.trust_weights(layer)
    return layer, fresh


def frozen(experts):
    model = nn.Sequential(layer_of(experts))
    ot.freeze_to_fp8(model)
    return model[0], copy.deepcopy(model[0])


def held(experts):
    layer = layer_of(experts, torch.bfloat16)
    fresh = copy.deepcopy(layer)
    ot.primary_fp8(layer)
    return layer, fresh


OWN = {"cached": cached, "trusted": trusted, "frozen": frozen, "held": held}


def state_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class Own:
    """A layer of this process, and one that never runs."""

    def __init__(self, kind, experts, backend):
        torch.manual_seed(0)
        self.arguments, self.is_trusted = (kind, experts, backend), kind == "trusted"
        self.layer, self.fresh = OWN[kind](experts)
        self.first = state_of(self.layer)
        self.call = torch.compile(self.layer, backend=backend, fullgraph=True) if backend else self.layer
        self.x, self.dy = torch.randn(40, K), torch.randn(40, N)
        self.offsets = [torch.tensor([20, 40])] if experts else []

    def again(self):
        return Own(*self.arguments)

    def passes(self, call, training):
        """Returns y, and with gradients those of x and of the weight."""
        x = self.x.clone().requires_grad_(training)
        with torch.set_grad_enabled(training):
            y = call(x, *self.offsets)
        if not training:
            return [y.clone()]
        y.backward(self.dy)
        gradients = [p.grad for p in call.parameters() if p.grad is not None]
        call.zero_grad()
        return [y.detach(), x.grad, *gradients]

    def run(self, training):
        self.layer.train(training)
        return self.passes(self.call, training)

    def wanted(self, training):
        """Returns the same of a layer that shares nothing and has these values."""
        fresh = copy.deepcopy(self.fresh)
        fresh.load_state_dict(state_of(self.layer))
        return self.passes(fresh.train(training), training)


def observe(own, name, training, passes):
    """Returns what becomes of a way behind this number of passes."""
    own.layer.load_state_dict(own.first)
    error = None
    try:
        if name in BEFORE:
            BEFORE[name](own.layer)
            own.passes(own.layer, training)  # an eager call finds other memory
    except ValueError as raised:
        error = raised
    for _ in range(passes):
        before = own.run(training)
    old = state_of(own.layer)
    try:
        with torch.no_grad():
            WAYS[name](own.layer) if error is None else None
    except Exception as raised:
        error = raised
    try:
        after = own.run(training)
    except NotImplementedError as raised:  # in a hook, which ran once
        error, after = raised, own.run(training)
    wanted, again = own.wanted(training), own.run(training)
    has_old_bits, has_new_bits = same(after, before), same(after, wanted)
    if same(old.values(), state_of(own.layer).values()):
        assert has_old_bits and has_new_bits and same(again, after)
        return "copied" if error is None else first_line(error)
    assert error is None, f"{error}, and wrote"
    if own.is_trusted and has_old_bits and same(again, before):
        ot.weights_changed()
        return "told" if same(own.run(training), wanted) else "unseen"
    assert not same(wanted, before) and same(again, after), "passes differ"
    return "seen" if has_new_bits else "unseen" if has_old_bits else "wrong"


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory):
    """Makes this process the only one of a group, for collectives."""
    store = tmp_path_factory.mktemp("one") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


CASES = [(kind, experts, backend) for kind in OWN for experts in (False, True) for backend in (None, "aot_eager")]


@pytest.mark.parametrize(("kind", "experts", "backend"), [*CASES, ("cached", False, "inductor")])
def test_of_one_process(kind, experts, backend):
    torch._dynamo.reset()
    own, words = Own(kind, experts, backend), expected(kind)
    if backend is not None:
        del words["a collective in a hook"]  # torch.compile traces hooks of a module, and no collective of c10d
    observed = {}
    for name in words:
        found = set()
        for training in (True, False):
            for passes in (1, 2) if backend is None else (2,):
                found.add(word_of(name, kind, observe(own, name, training, passes)))
                if name in MOVES:
                    own = own.again()
        observed[name] = " and ".join(sorted(found))
    assert observed == words


# ---- weights that ranks share


class Sharded:
    """A layer that FSDP2 shards. The last of five ranks has no row of it."""

    kind = "sharded"

    def __init__(self, travels, grid=None):
        self.model = nn.Sequential(self._layer())
        if travels:
            od.shard_fp8(self.model)
        mesh = grid and init_device_mesh("cpu", grid, mesh_dim_names=("replicate", "shard"))
        for part in (self.model[0], self.model):
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        self._begin()

    @staticmethod
    def _layer():
        torch.manual_seed(0)
        return ot.Linear(K, 16, bias=False)

    def _begin(self):
        self.first = [memory(p).detach().clone() for p in weights(self.model)]
        self.first_values = self.values()
        self.x = torch.randn(8, K, generator=torch.Generator().manual_seed(dist.get_rank()))

    def reset(self):
        for p, first in zip(weights(self.model), self.first, strict=True):
            memory(p).data.copy_(first)  # which nobody counts

    def values(self):
        return [p.detach().full_tensor() for p in weights(self.model)]

    @staticmethod
    def passes(model, x, training):
        with torch.set_grad_enabled(training):
            y = model.train(training)(x)
        if training:
            y.sum().backward()
            model.zero_grad()
        return [y.detach().clone()]

    def run(self, training):
        results = self.passes(self.model, self.x, training)
        self.model.reshard()  # which FSDP2 leaves to backward
        return results

    def wanted(self, values):
        """Returns what a whole layer computes that shares nothing and has these values."""
        layer = self._layer().bfloat16()
        layer.load_state_dict({"weight": values[0]})
        return self.passes(layer, self.x.bfloat16(), False)


class Parts(Sharded):
    """Layers that tensor parallelism divides."""

    kind = "parts"

    def __init__(self):
        torch.manual_seed(0)
        model = nn.Sequential(ot.Linear(K, N, bias=False), ot.Linear(N, K, bias=False))
        plan = {"0": od.OctileColwiseParallel(sequence_dim=0), "1": od.OctileRowwiseParallel(sequence_dim=0)}
        self.model = parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
        self.fresh = copy.deepcopy(self.model)
        self._begin()

    def run(self, training):
        return self.passes(self.model, self.x, training)

    def wanted(self, _):
        fresh = copy.deepcopy(self.fresh)
        for p, q in zip(weights(fresh), weights(self.model), strict=True):
            memory(p).data.copy_(memory(q))
        return self.passes(fresh, self.x, False)


def observe_shared(shared, name):
    """Returns the table's words for a way, for passes with gradients and without, that all ranks go and the first
    one alone. All ranks always call the same collectives, and no pass follows another of its values."""
    words, known = set(), {}
    shared.reset()
    BEFORE.get(name, lambda _: None)(shared.model)
    before = shared.run(False)
    for training in (True, False):
        for alone in (False, True):
            shared.reset()
            if alone and name == "a collective of all ranks":
                before = shared.run(training)
                continue
            error = None
            try:
                with torch.no_grad():
                    WAYS[name](shared.model) if not alone or dist.get_rank() == 0 else None
            except Exception as raised:
                error = raised
            after = shared.run(training)
            if alone not in known:
                new = shared.values()
                known[alone] = same(shared.first_values, new), shared.wanted(new)
            is_old, wanted = known[alone]
            has_new_bits = same(after, wanted)
            if error is not None:
                words.add(word_of(name, shared.kind, first_line(error)) if is_old else "failed, and wrote")
            elif not is_old:
                words.add("seen" if has_new_bits and not same(after, before) else "unseen or wrong")
            elif not alone:
                words.add("copied")
            # Nothing has changed for ranks of another replica than the first one's.
            words |= set() if has_new_bits else {"unseen or wrong"}
            before = after
    return " and ".join(sorted(words))


#: Kinds of weights that ranks share, and how each makes one, by the number of ranks.
SHARED = {
    2: {"FSDP2 in BF16": lambda: Sharded(False), "tensor parallelism": Parts},
    4: {"HSDP in BF16": lambda: Sharded(False, (2, 2)), "HSDP in FP8": lambda: Sharded(True, (2, 2))},
    5: {"FSDP2 in FP8": lambda: Sharded(True)},
}


def run_rank(rank, world, folder):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/store{world}", rank=rank, world_size=world, timeout=timeout)
    observed = {}
    for kind, make in SHARED[world].items():
        shared = make()
        observed[kind] = {}
        for name in expected(shared.kind):
            observed[kind][name] = observe_shared(shared, name)
            if name in MOVES:
                shared = make()
    torch.save(observed, f"{folder}/{world}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def compile_once(_):
    """Leaves in Inductor's cache what ranks compile."""
    WAYS["torch.compile"](nn.Linear(K, 16, bias=False))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writes")
    run_ranks(compile_once, (), 1, folder)
    for world in SHARED:
        run_ranks(run_rank, (world, str(folder)), world, folder)
    return folder


@pytest.mark.parametrize(("world", "kind"), [(world, kind) for world, kinds in SHARED.items() for kind in kinds])
def test_of_ranks(shared, world, kind):
    for rank in range(world):
        observed = torch.load(shared / f"{world}-{rank}.pt")[kind]
        assert observed == expected("parts" if kind == "tensor parallelism" else "sharded"), rank
