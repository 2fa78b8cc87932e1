"""Weights that travel in FP8, over gloo: their bits, and what is moved, are counted on every rank (sharded.py)."""

from pathlib import Path

import pytest
import sharded
import torch
from rank_processes import context
from torch import nn

import octile.torch as ot
from octile.torch import distributed as od
from octile.torch.distributed.pieces import Pieces, Range, Scales, Step, Transposed

CHECKS = {
    2: [
        *("save", "bits", "compiled_blocks", "replicas", "codes_of_whole_weights", "meta_device", "writes"),
        *("trusted", "inner_modules", "bytes_on_the_wire", "launches", "warmed", "flat_ranges", "refusals"),
    ],
    3: ["load", "some_bits", "codes_of_whole_weights", "meta_device", "bytes_on_the_wire", "flat_ranges"],
    4: ["load", "replicas", "flat_ranges", "resharded_in_part"],
    # The last of five ranks has no row of a weight of 16.
    5: ["some_bits", "codes_of_whole_weights", "meta_device", "writes", "flat_ranges"],
    8: ["load", "replicas", "flat_ranges"],
}


def started(function, world, *arguments):
    processes = [context.Process(target=function, args=(rank, world, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    return processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharding")


@pytest.fixture(scope="module")
def held(folder):
    """Returns what each rank says of its checks, by the number of ranks."""
    said = {}
    for world, names in CHECKS.items():
        for process in started(sharded.run_checks, world, str(folder), names):
            process.join(120)
        said[world] = [Path(folder, f"{world}-{rank}.txt").read_text() for rank in range(world)]
    return said


@pytest.mark.parametrize(("world", "name"), [(world, name) for world, names in CHECKS.items() for name in names])
def test_of_all_ranks(held, world, name):
    for said in held[world]:
        assert name in said.splitlines(), "\n".join(held[world])


def test_a_lost_rank_is_an_error(folder):
    for process in started(sharded.lose_a_rank, 3, str(folder / "..")):
        process.join(60)
        assert process.exitcode == 0
    for rank in range(2):
        seconds, _, error = Path(folder, "..", f"error-{rank}.txt").read_text().partition(" ")
        assert float(seconds) < 30 and error


# ---- of one process


def test_the_report_says_what_travels():
    model = nn.Sequential(*(nn.Linear(144, 144) for _ in range(4)))
    for i, recipe in enumerate(("blockwise", "mxfp8", "rowwise", "delayed")):
        ot.convert(model, recipe, min_dims=16, preset="all-linear", filter=lambda name, _, i=i: name == str(i))
    model.append(ot.Experts(2, 32, 32))
    model.append(ot.Linear(8, 8, unaligned="bf16"))
    sharding = od.shard_fp8(model)
    assert str(sharding).splitlines() == [
        "1 weights travel in FP8, a byte an element: 20736 elements",
        "  0.weight",
        "  fully_shard has sharded 0 of them so far",
        "  not in FP8, because recipe 'mxfp8' has other codes in the transposed copy: 1.weight",
        "  not in FP8, because recipe 'rowwise' has other codes in the transposed copy: 2.weight",
        "  not in FP8, because recipe 'delayed' has scales that layers of such weights do not take: 3.weight",
        "  not in FP8, because it is of experts: 4.weight",
        "  not in FP8, because its sizes are not multiples of 16: 5.weight",
    ]


def test_models_that_are_not_sharded():
    with pytest.raises(ValueError, match="model is 'one without FP8 layers'; allowed is one that octile.torch.convert"):
        od.shard_fp8(nn.Linear(16, 16))
    with pytest.raises(TypeError, match="model is of type int; allowed is torch.nn.Module"):
        od.shard_fp8(3)
    model = ot.Linear(32, 32)
    ot.primary_fp8(model)
    with pytest.raises(ValueError, match="weight is 'held in FP8'; allowed is a plain tensor: FSDP2 shards no weights"):
        od.shard_fp8(model)


@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise"])
def test_layers_of_flat_weights_compute_and_train(recipe):
    torch.manual_seed(0)
    layer, plain = (ot.Linear(144, 272, bias=False, dtype=torch.bfloat16, recipe=recipe) for _ in range(2))
    master = torch.randn(272 * 144)
    gathered = torch.empty(272 * 144, dtype=torch.uint8)
    shards = od.FlatShards([(272, 144)], 0, master, gathered, recipe)
    shards.quantize()
    (layer.weight,) = shards.weights()
    plain.weight.data = master.view(272, 144).bfloat16()
    results = []
    for one in (layer, plain):
        x = torch.ones(9, 144, dtype=torch.bfloat16, requires_grad=True)
        y = one(x)
        y.float().square().sum().backward()
        results.append([y.detach(), x.grad, one.weight.grad])
    assert sharded.same(*results)


def test_pieces_transpose_a_bucket():
    """Whole weights in one process: the steps, and buckets of them."""
    kind, shapes = ot.Recipe().weight, [(48, 80), (144, 272), (272, 32)]
    values = [torch.randn(shape) for shape in shapes]
    places, end = [0, 48 * 80, 48 * 80 + 144 * 272], 48 * 80 + 144 * 272 + 272 * 32
    codes, scales = torch.zeros(end, dtype=torch.uint8), Scales(shapes, kind, "cpu")
    transposed = Transposed(shapes, kind, codes, places)
    ranges = [Range(shape, 0, x, at) for shape, x, at in zip(shapes, values, places, strict=True)]
    pieces = Pieces(ranges, codes, scales, True, transposed)
    pieces.quantize(None)
    pieces.run(Step.TRANSPOSE, 1, 2)
    for i, (x, at) in enumerate(zip(values, places, strict=True)):
        q = ot.quantize(x.bfloat16(), granularity="128x128")
        mine = codes[at : at + x.numel()].view(x.shape)
        assert sharded.same([mine, scales.of(i)], [q.codes.view(torch.uint8), q.scales])
        t = ot.transpose(q)
        ours = transposed.of(i)
        assert sharded.same(ours, [t.codes.view(torch.uint8), t.scales]) == (i > 0), "the first is not in the bucket"


def test_flat_shards_refuse():
    good = {"shapes": [(16, 32), (32, 16)], "start": 0, "master": torch.zeros(8), "gathered": torch.zeros(1024).byte()}

    def refused(kind, text, **others):
        with pytest.raises(kind) as error:
            od.FlatShards(**good | others)
        assert text in str(error.value)

    od.FlatShards(**good)
    refused(ValueError, "shapes is 'empty'; allowed are one (n, k) and more", shapes=[])
    refused(ValueError, "shapes is (16, 24); allowed are (n, k), multiples of 16 above 0", shapes=[(16, 24)])
    refused(ValueError, "start is 1017; allowed are 0 to 1016, so that master ends within gathered", start=1017)
    refused(TypeError, "start is of type float; allowed is int", start=1.5)
    refused(ValueError, "master.dtype is torch.int64", master=torch.zeros(8).long())
    refused(ValueError, "master is (2, 4); allowed is contiguous, of one dimension", master=torch.zeros(2, 4))
    refused(ValueError, "gathered.dtype is torch.float32; allowed is torch.uint8", gathered=torch.zeros(1024))
    refused(ValueError, "gathered is (1000,); allowed has at least 1024 elements", gathered=torch.zeros(1000).byte())
    refused(
        ValueError,
        "offsets is [0, 500]; allowed are those of weights that do not overlap, as 0 and 1 do",
        offsets=[0, 500],
    )
    refused(ValueError, "offsets is [0]; allowed are 2 integers from 0 on", offsets=[0])
    refused(
        ValueError, "dtype is torch.float16; allowed are torch.float32 and torch.bfloat16 with", dtype=torch.float16
    )
    refused(NotImplementedError, "recipe is 'mxfp8'; allowed are those with one set of codes", recipe="mxfp8")
    refused(NotImplementedError, "recipe is 'delayed'", recipe="delayed")


def test_operators_refuse_pieces():
    make, x, table = torch.ops.octile.make_pieces, torch.zeros(256), torch.tensor([[16, 16, 0, 0, 0, 0]])
    codes, floats = torch.zeros(256, dtype=torch.uint8), torch.zeros(4)
    kind = "e4m3:128x128:pow2"

    def refused(text, *arguments):
        with pytest.raises((ValueError, RuntimeError)) as error:
            make(*arguments)
        assert text in str(error.value)

    good = [codes, floats, floats.clone()]
    token = make([x], good, table, kind, False)
    refused("x has no tensors; allowed: 1 and more", [], good, table, kind, False)
    refused("buffers has 2 tensors; allowed: 3 and 6", [x], good[:2], table, kind, False)
    refused(
        "table is [1, 5]; allowed is contiguous int64 [1, 6] on the host", [x], good, table[:, :5].clone(), kind, False
    )
    refused(
        "codes has 256 elements; allowed are at least 1 + 256",
        [x],
        good,
        table + torch.tensor([0, 0, 0, 1, 0, 0]),
        kind,
        False,
    )
    refused("amax has 3 elements; allowed are at least 0 + 4", [x], [codes, floats[:3], floats], table, kind, False)
    refused("scales [4] is not contiguous fp32", [x], [codes, floats, floats.int()], table, kind, False)
    refused("length is 256; allowed: 0 to 255", [x], good, table + torch.tensor([0, 0, 1, 0, 0, 0]), kind, False)
    refused("x has tensors of several types", [x, x.bfloat16()], good, table.repeat(2, 1), kind, False)
    refused("allowed are types with fp32 scales", [x], good, table, "e4m3:32x32:e8m0", False)
    run = torch.ops.octile.run_pieces
    for text, arguments in (
        ("token is 0; allowed is one of make_pieces", (good, 0, 1, 0, 1)),
        ("buffers are others than those of the pieces", (good[::-1], token, 1, 0, 1)),
        ("count is 2; allowed: 0 to 1", (good, token, 1, 0, 2)),
        ("step is 9", (good, token, 9, 0, 1)),
    ):
        with pytest.raises((ValueError, RuntimeError)) as error:
            run(*arguments)
        assert text in str(error.value)
    torch.ops.octile.forget_pieces(token)
    with pytest.raises((ValueError, RuntimeError), match="allowed is one of make_pieces"):
        run(good, token, 1, 0, 1)
