"""Layers whose features and tokens several processes share, by gloo on the host: activations travel as FP8 codes, and
all bits are those of a run that gathers them as they are and quantises afterwards."""

import copy
import datetime
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import octile
import octile.torch as ot
from octile.torch.distributed import (
    OctileColwiseParallel,
    OctilePrepareInput,
    OctileRowwiseParallel,
    tensor_parallel_report,
)

RANKS, WIDTH, HIDDEN, HEADS, STEPS = 4, 64, 128, 4, 10
RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (
            layer(x).view(batch, tokens, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(x=self.norm2(x))


def block(mesh, wire, recipe="blockwise"):
    torch.manual_seed(0)
    model = Block().bfloat16()
    ot.convert(model, recipe=recipe, min_dims=16, preset="all-linear")
    column, row = (kind(wire=wire) for kind in (OctileColwiseParallel, OctileRowwiseParallel))
    plan = dict.fromkeys(("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"), column)
    plan |= dict.fromkeys(("attention.o", "mlp.down"), row)
    plan |= {"attention": OctilePrepareInput(wire=wire), "mlp": OctilePrepareInput("x", wire=wire)}
    plan |= dict.fromkeys(("norm1", "norm2"), SequenceParallel())
    return parallelize_module(model, mesh, plan)


def part(mesh, tokens, batch=1, seed=0):
    """This rank's tokens of an input."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(batch, tokens, WIDTH, generator=generator).bfloat16()
    return whole.chunk(mesh.size(), 1)[mesh.get_local_rank()].contiguous()


def step(model, x):
    """Returns the loss, the output and the gradient of x. Only the output is compared between ranks' parts."""
    x = x.clone().requires_grad_()
    y = model(x)
    loss = y.float().square().mean()
    loss.backward()
    return [loss.detach(), y.detach(), x.grad]


def train(model, mesh, tokens, steps, batch=1):
    """Returns all that a run computes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    seen = []
    for number in range(steps):
        seen += step(model, part(mesh, tokens, batch, number))
        seen += [p.grad.to_local().clone() for p in model.parameters()] if number in (0, steps - 1) else []
        optimizer.step()
        optimizer.zero_grad()
    return seen + [p.detach().to_local() for p in model.parameters()]


def same(ours, others):
    return all(a.equal(b) for a, b in zip(ours, others, strict=True)) and not any(a.isnan().any() for a in ours)


def same_runs(mesh, tokens, steps, recipe="blockwise", batch=1):
    """Returns whether a run that sends FP8 has the bits of one that sends bf16, and what both say of it."""
    models = [block(mesh, wire, recipe) for wire in ("fp8", "bf16")]
    runs = [train(model, mesh, tokens, steps, batch) for model in models]
    return same(*runs), [set(str(tensor_parallel_report(model)).splitlines()) for model in models]


def of_one_rank(mesh, kind, recipe):
    """Returns whether a divided layer has the operands of the whole one: its products that no rank adds to are bits of
    those."""
    torch.manual_seed(1)
    n, k, tokens = (512, 128, 512) if kind is OctileColwiseParallel else (128, 512, 512)
    whole = ot.Linear(k, n, bias=kind is OctileColwiseParallel, recipe=recipe, dtype=torch.bfloat16)
    layer = parallelize_module(copy.deepcopy(whole), mesh, kind(sequence_dim=0))
    x, dy = torch.randn(tokens, k).bfloat16(), torch.randn(tokens, n).bfloat16()
    rank, size = mesh.get_local_rank(), mesh.size()
    column = kind is OctileColwiseParallel
    mine = x.chunk(size, 0 if column else 1)[rank].clone().requires_grad_()
    y = layer(mine)
    y.backward(dy.chunk(size, 1 if column else 0)[rank].contiguous())
    x.requires_grad_()
    wanted = whole(x)
    wanted.backward(dy)
    of = [(layer.weight.grad.to_local(), whole.weight.grad.chunk(size, 0 if column else 1)[rank])]
    if column:
        of += [(y, wanted.chunk(size, 1)[rank]), (layer.bias.grad.to_local(), whole.bias.grad.chunk(size)[rank])]
        # Sums over ranks are rounded on the way.
        return all(a.equal(b) for a, b in of) and torch.allclose(mine.grad, x.grad.chunk(size)[rank], atol=0.1)
    of += [(mine.grad, x.grad.chunk(size, 1)[rank])]
    return all(a.equal(b) for a, b in of) and torch.allclose(y, wanted.chunk(size)[rank], atol=0.1)


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank gives to collectives, by operation and dtype."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "_c10d_functional" and "wait" not in function._opname:
            tensors = args[0] if isinstance(args[0], list) else [args[0]]
            for tensor in tensors:
                self.bytes[f"{function._opname} {str(tensor.dtype)[6:]}"] += tensor.nbytes
        return function(*args, **(kwargs or {}))


def sent_by(model, x):
    with Sent() as sent:
        step(model, x)
    return dict(sent.bytes)


def refusals(mesh, rank):
    """Returns what this rank is told if ranks disagree, and if one of them refuses."""
    said = []
    for odd, kind in (("blockwise_hybrid", "blockwise"), ("rowwise", "blockwise")):
        layer = ot.Linear(64, 64, recipe=odd if rank == 1 else kind)
        try:
            parallelize_module(layer, mesh, OctileColwiseParallel())
        except (ValueError, NotImplementedError) as error:
            said.append(str(error))
    return said


def with_fsdp2(mesh):
    """Two steps of a block on a 2-D mesh, for both wires."""
    runs = []
    for wire in ("fp8", "bf16"):
        model = fully_shard(block(mesh["tp"], wire), mesh=mesh["dp"])
        runs.append(train(model, mesh["tp"], 256, 2))
    names = {name: tuple(value.full_tensor().shape) for name, value in model.state_dict().items()}
    return same(*runs), names == {name: tuple(value.shape) for name, value in Block().state_dict().items()}


def without_fp8(mesh):
    """Returns whether calls without FP8 compute as PyTorch does, of the divided tensors."""
    model, alone = block(mesh, "fp8"), block(mesh, "bf16")
    ot.set_fp8(model, False)
    ot.set_fp8(alone, False)
    ours, theirs = (train(m, mesh, 256, 1) for m in (model, alone))
    close = Block().bfloat16()
    close.load_state_dict({name: value.full_tensor() for name, value in block(mesh, "fp8").state_dict().items()})
    with torch.no_grad():
        wanted = close(part_of_one(256)).chunk(mesh.size(), 1)[mesh.get_local_rank()]
    told = {line.split(", ")[-1] for line in str(tensor_parallel_report(model)).splitlines()[1:]}
    return same(ours, theirs) and torch.allclose(ours[1], wanted, atol=0.1), told


def part_of_one(tokens):
    return torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()


def run_rank(rank, folder):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timeout)
    four = init_device_mesh("cpu", (RANKS,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    two, half = grid["tp"], rank // 2  # each pair of ranks does something of its own
    recipe = ("blockwise", "tensorwise")[half]
    results = {"disagree": refusals(four, rank), "four": same_runs(four, 512, 2, "blockwise_hybrid")}
    results["two"] = same_runs(two, 256, (STEPS, 3)[half], recipe)
    results["ragged"] = same_runs(two, 192, 1, recipe)
    results["batches"] = same_runs(two, 256, 1, recipe, batch=2)
    kinds = OctileColwiseParallel, OctileRowwiseParallel
    results["one rank"] = [of_one_rank(four, kind, recipe) for kind in kinds for recipe in ("blockwise", "tensorwise")]
    results["sent"] = [sent_by(block(two, wire).attention, part(two, 256)) for wire in ("fp8", "bf16")]
    results["fsdp2"] = with_fsdp2(grid)
    results["plain"] = without_fp8(two)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(run_rank, (str(folder),), RANKS, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("case", ["two", "four", "batches"])
def test_steps_equal_those_that_send_bf16(results, case):
    for rank in results:
        equal, (fp8, bf16) = rank[case]
        assert equal
        assert sum(line.endswith("activations sent in FP8") for line in fp8) == 7
        assert sum(line.endswith("activations sent as they are, as wire says") for line in bf16) == 7


def test_tokens_that_are_no_whole_blocks_are_sent_as_they_are(results):
    told = "activations sent as they are: 96 tokens on each rank are not a multiple of 128"
    for rank in results:
        equal, (fp8, _) = rank["ragged"]
        assert equal and sum(line.endswith(told) for line in fp8) == 7


def test_report_says_whose_blocks_are_no_part_of_the_whole_layers(results):
    note = (
        "  mlp.down: note: in_features on this rank are 32, no multiple of 128: weight and gradients or inputs have "
        "blocks of their own, and other bits than on one rank"
    )
    assert note in results[0]["four"][1][0]
    assert (
        "  mlp: note: PyTorch computes its activation: layers of fused MLPs that ranks divide run one by one"
        in results[0]["four"][1][0]
    )
    # The scales of "tensorwise" are those of all ranks' tensors.
    assert not any("multiple of 128" in line for line in results[2]["two"][1][0])


def test_operands_are_those_of_one_rank(results):
    assert all(rank["one rank"] == [True] * 4 for rank in results)


def test_bytes_that_are_sent(results):
    # An attention of 128 tokens on each of two ranks. x is sent row-wise in forward, and transposed in backward once
    # for q, k and v; the gradient of its output in both directions; the bias's is summed.
    elements, scales = 128 * WIDTH, 128 * 4 + WIDTH * 4  # one block of columns, and one of tokens
    both = {"reduce_scatter_tensor bfloat16": 2 * 2 * 2 * elements, "all_reduce float32": 4 * WIDTH}
    fp8 = {"all_gather_into_tensor uint8": 4 * elements, "all_gather_into_tensor float32": 2 * scales}
    bf16 = {"all_gather_into_tensor bfloat16": 2 * 2 * elements}
    assert all(rank["sent"] == [both | fp8, both | bf16] for rank in results)


def test_ranks_that_disagree_are_all_told(results):
    column = "OctileColwiseParallel(sequence_dim=1, wire='fp8') of"
    for number, rank in enumerate(results):
        other, refused = rank["disagree"]
        assert other == (
            f'octile: module is "{column} blockwise [64, 64] torch.float32, bias on rank 0 of the group, {column} '
            'blockwise_hybrid [64, 64] torch.float32, bias on rank 1"; allowed is the same on all ranks'
        )
        reason = (
            "recipe is 'rowwise'; tensor parallelism has blockwise, blockwise_hybrid, tensorwise, whose operands are "
            "the same bits on every number of ranks"
        )
        if number == 1:
            assert refused == f"octile: {reason}"
        else:
            assert f"refused on rank 1 of the group, NotImplementedError: octile: {reason}" in refused


def test_fsdp2_divides_the_same_layers(results):
    assert all(rank["fsdp2"] == (True, True) for rank in results)


def test_calls_without_fp8(results):
    for rank in results:
        equal, told = rank["plain"]
        assert equal and "computed without FP8" in told


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The mesh of a process that is alone."""
    dist.init_process_group("gloo", f"file://{tmp_path_factory.mktemp('alone')}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Short(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (ot.Linear(64, 64, bias=False, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x).view(x.shape)))


def short(mesh, wire="fp8"):
    torch.manual_seed(0)
    plan = {"": OctilePrepareInput(wire=wire), "up": OctileColwiseParallel(wire=wire)}
    model = Short()
    for name, style in (plan | {"down": OctileRowwiseParallel(wire=wire)}).items():
        parallelize_module(model.get_submodule(name), mesh, style)
    return model


class GuideBlock(Block):
    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def test_the_example_of_the_guide_runs(alone):
    text = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    example = next(code for code in text.split("```python\n") if "tensor_parallel_report," in code).split("```")[0]
    torch.manual_seed(0)
    block = GuideBlock().bfloat16()
    for module, names in ((block.attention, "qkvo"), (block.mlp, ("gate", "up", "down"))):
        kind, layers = type(module), {}
        for name in names:  # the guide's names, and the class's for its forward
            module.add_module(f"{name}_proj", module._modules.pop(name))
            layers[name] = property(lambda self, name=name: self._modules[f"{name}_proj"])
        module.__class__ = type(kind.__name__, (kind,), layers)
    model = nn.ModuleDict({"layers": nn.ModuleList([block])})
    ot.convert(model, min_dims=16)  # the guide's call leaves layers as small as these
    model.layers = model["layers"]
    mesh = {"tp": alone, "dp": alone}
    exec(example, {"octile": octile, "model": model, "mesh": mesh, "fully_shard": lambda *_, **__: None})
    loss, y, gradient = step(block, part_of_one(128))
    assert y.shape == (1, 128, WIDTH) and loss > 0 and gradient.isfinite().all()
    assert all(layer.weight.grad is not None for layer in block.modules() if isinstance(layer, ot.Linear))


def test_compiled_graphs_are_whole_and_have_the_same_bits(alone):
    runs = []
    for compiled in (False, True):
        model, x = short(alone), part(alone, 128)
        torch._dynamo.reset()
        runs.append(step(torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model, x))
        runs[-1] += [p.grad.to_local() for p in model.parameters()]
    assert same(*runs)


@pytest.mark.parametrize("trusted", [False, True])
def test_copies_of_a_part_are_kept_and_follow_its_contents(alone, trusted):
    model, other = short(alone), short(alone)
    ot.trust_weights(model, trusted)
    x, count = torch.randn(1, 128, 64).bfloat16(), torch.ops.octile.weight_quantizations
    writes = [
        lambda p: p.mul_(0.5),
        lambda p: p.to_local().mul_(0.5),
        lambda p: p.data.mul_(0.5),
        lambda p: p._local_tensor.data.mul_(0.5),
        lambda p: p.detach().to_local().mul_(0.5),
    ]
    with torch.no_grad():
        model(x)
        before = count()
        y = model(x)
        assert count() == before
        for write in writes:
            for one in (model, other):
                write(one.up.weight)
            before, last, y = count(), y, model(x)
            assert count() == before + 1 and not y.equal(last) and y.equal(other(x))
        before = count()
        model.up.weight = nn.Parameter(model.up.weight * 2)
        assert not model(x).equal(y) and count() > before


def test_a_retained_graph_gathers_again(alone):
    model, x = short(alone), part(alone, 128)
    loss = model(x).float().square().mean()
    loss.backward(retain_graph=True)
    once = [p.grad.to_local().clone() for p in model.parameters()]
    loss.backward()
    assert all(p.grad.to_local().equal(2 * g) for p, g in zip(model.parameters(), once, strict=True))


def test_only_layers_read_a_prepared_input(alone):
    model = short(alone)
    model.up.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 0,))
    with pytest.raises(
        ValueError, match=r"x is 'another tensor of \(1, 128, 64\)'; allowed is the tensor that OctilePrepareInput"
    ):
        model(part(alone, 128))


def test_layers_that_are_not_divided(alone):
    def refuses(match, layer, kind=ValueError):
        with pytest.raises(kind, match=match):
            parallelize_module(layer, alone, OctileColwiseParallel())

    refuses(
        "module is of type Linear; allowed is octile.torch.Linear: convert goes before", nn.Linear(64, 64), TypeError
    )
    refuses("recipe is 'delayed'; tensor parallelism has", ot.Linear(64, 64, recipe="delayed"), NotImplementedError)
    refuses("out_features is 72; allowed are multiples of 16", ot.Linear(64, 72, unaligned="bf16"))
    with pytest.raises(ValueError, match="OctilePrepareInput is 'on a Linear'; allowed is on a module of layers with"):
        parallelize_module(nn.Linear(64, 64), alone, OctilePrepareInput())(torch.randn(1, 64))
    with pytest.raises(ValueError, match="wire is 'fp4'; allowed are"):
        OctileRowwiseParallel(wire="fp4")
    with pytest.raises(ValueError, match="sequence_dim is -1; allowed are integers from 0 on"):
        OctileColwiseParallel(sequence_dim=-1)
    with pytest.raises(ValueError, match="argument is None; allowed are a place from 0 on and a name"):
        OctilePrepareInput(None)


def test_inputs_that_do_not_fit(alone):
    layer = parallelize_module(ot.Linear(64, 64), alone, OctileColwiseParallel())
    with pytest.raises(ValueError, match=r"x.shape is \(1, 128, 32\); allowed is \[..., 64\]"):
        layer(torch.randn(1, 128, 32))
    with pytest.raises(ValueError, match="x.dim\\(\\) is 2; allowed are 3 and more, by sequence_dim"):
        layer(torch.randn(128, 64))
    layer.weight.main_grad = torch.zeros(64, 64)
    with pytest.raises(NotImplementedError, match="weight.main_grad of a tensor-parallel layer is set"):
        layer(torch.randn(1, 128, 64))
    layer.weight.main_grad = None
    ot.sentry(layer)
    with pytest.raises(NotImplementedError, match="a sentry watches a tensor-parallel layer"):
        layer(torch.randn(1, 128, 64))


def test_products_of_panels_are_those_of_matrices():
    dy, x = torch.randn(384, 48).bfloat16(), torch.randn(384, 64).bfloat16()
    for kind in ("1x128", "tensor"):
        a, b = (ot.quantize(t, granularity=kind, output="col") for t in (dy, x))
        wanted = ot.gemm(a, b, tokens="k", promote=128)
        for one in (0, 1):
            codes = [a.codes, b.codes]
            codes[one] = codes[one].view(torch.uint8).unflatten(1, (3, 128)).movedim(1, 0).contiguous()
            codes[one] = codes[one].view(a.codes.dtype)
            made = torch.empty_like(wanted)
            operands = codes[0], a.scales, a.type.text, codes[1], b.scales, b.type.text
            torch.ops.octile.sum_panels_out(*operands, made)
            assert made.equal(wanted)
    with pytest.raises(ValueError, match="allowed is one of them in two panels or more"):
        torch.ops.octile.sum_panels_out(a.codes, a.scales, a.type.text, b.codes, b.scales, b.type.text, made)
    with pytest.raises(ValueError, match="with a multiple of 128 tokens"):
        panels = a.codes.view(3, 48, 128)[:, :, :64].contiguous()
        torch.ops.octile.sum_panels_out(panels, a.scales, a.type.text, b.codes, b.scales, b.type.text, made)


def test_operands_are_quantised_by_themselves():
    x, code = torch.randn(40, 64).bfloat16(), ot.Recipe("tensorwise").code
    amax = torch.ops.octile.operand_amax(x, code, 2)
    assert amax.equal(x.float().abs().max().view(1))
    made = torch.ops.octile.quantize_operand(x, code, 2, True, True, True, amax.reciprocal())
    assert made[0].dtype == torch.float8_e5m2 and made[1].equal(amax.reciprocal().reciprocal())
    assert made[0].view(torch.uint8).t().equal(made[2].view(torch.uint8)[:, :40])
    assert torch.allclose(made[4], x.float().sum(0), atol=1e-4)
    blockwise = ot.Recipe("blockwise").code
    for match, call in (
        ("role is 3; allowed are 0 to 2", lambda: torch.ops.octile.operand_amax(x, code, 3)),
        ("recipe is 'blockwise'; allowed are", lambda: torch.ops.octile.operand_amax(x, blockwise, 0)),
        (
            "encode is given; allowed is None",
            lambda: torch.ops.octile.quantize_operand(x, blockwise, 0, True, False, False, amax),
        ),
        (
            "rowwise and transposed are false",
            lambda: torch.ops.octile.quantize_operand(x, code, 0, False, False, False, None),
        ),
    ):
        with pytest.raises(ValueError, match=match):
            call()
