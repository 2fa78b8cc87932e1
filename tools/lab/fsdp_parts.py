"""The parts of fsdp.py beside the step of a model: communication, quantising, and their overlap."""

from __future__ import annotations

import ctypes
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from models import llama
from records import RATIO, Records, peer_of, protocol_of
from timing import interleaved, synchronize
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import octile.torch as ot
from octile import _c
from octile._types import gemm_text, promote_of
from octile.torch.distributed import shard_fp8

POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def rounds_of(calls: dict, options, times: int = 10) -> dict[str, list[float]]:
    """Returns the wall times of calls that take turns, in us. Ranks begin together."""
    for call in calls.values():
        call()
    return interleaved(calls, options.rounds, times if options.device == "cuda" else 1, options.device, dist.barrier)


# ---- the gather of one weight


def gather(options, records: Records) -> bool:
    """Measures the all-gather of one weight, and FSDP2's unshard of it with its casts and copies."""
    size, world = (8192 if options.size == "8b" else 256), dist.get_world_size()
    calls = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp8", torch.uint8)):
        whole = torch.empty(size * size, dtype=dtype, device=options.device)
        own = torch.zeros(size * size // world, dtype=dtype, device=options.device)
        calls[name] = lambda whole=whole, own=own: dist.all_gather_into_tensor(whole, own)
        calls[f"unshard {name}"] = sharded(size, name == "fp8", options)
    times = rounds_of(calls, options)
    for name in ("", "unshard "):
        ours, theirs = times[f"{name}fp8"], times[f"{name}bf16"]
        us, peer = statistics.median(ours), statistics.median(theirs)
        moved = size * size * (world - 1) // world  # in FP8
        print(
            f"gather: {name}[{size}, {size}] FP8 {us:.0f} us, BF16 {peer:.0f} us, {us / peer:.3f}; {moved} bytes a GPU"
        )
        what = f"FSDP2 {name or 'all-gather '}weight=[{size}, {size}]"
        peers = [peer_of("bf16", theirs)]
        details = {"ranks": world, "bytes": moved}
        records.add(what.strip(), "us", ours, protocol_of("stream", options.rounds), peers=peers, **details)
    return True


def sharded(size: int, travels: bool, options):
    """Returns a call that gathers a sharded layer and frees it again."""
    with torch.device(options.device):
        model = nn.Sequential(nn.Linear(size, size, bias=False))
    ot.convert(model, min_dims=16, preset="all-linear")
    if travels:
        shard_fp8(model)
    fully_shard(model[0], mp_policy=POLICY)
    fully_shard(model, mp_policy=POLICY)
    with torch.no_grad():
        model(torch.zeros(16, size, device=options.device))

    def call() -> None:
        model[0].unshard()
        model[0].reshard()

    return call


# ---- quantising


def quantise(options, records: Records) -> bool:
    """Measures quantising all shards of a model beside a copy that moves as many bytes."""
    model = llama(options, device="meta")
    ot.convert(model, min_dims=options.min_dims)
    sharding = shard_fp8(model)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=POLICY)
    fully_shard(model, mp_policy=POLICY)
    model.to_empty(device=options.device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    model._get_fsdp_state()._lazy_init()
    sharding.quantize()
    elements = sum(t.shard.numel() for t in sharding.travellers.values())
    moved = elements * (4 + 4 + 1)
    source = torch.zeros(moved // 2, dtype=torch.uint8, device=options.device)
    target = torch.empty_like(source)
    calls = {"quantise": sharding.quantize, "stream": lambda: target.copy_(source)}
    times = rounds_of(calls, options)
    ours, stream = times["quantise"], times["stream"]
    launches = launches_of(sharding.quantize, options)
    us, peer = statistics.median(ours), statistics.median(stream)
    print(
        f"quantise: {len(sharding.travellers)} weights, {elements} elements a GPU: {launches} launches, {us:.0f} us; a "
        f"stream of {moved} bytes {peer:.0f} us, {peer / us:.3f}"
    )
    what = f"FSDP2 quantise size={options.size} layers={options.layers}"
    details = {"ranks": dist.get_world_size(), "bytes": moved, "launches": launches}
    peers = [peer_of("stream of as many bytes", stream)]
    records.add(what, "us", ours, protocol_of("stream", options.rounds), peers=peers, ok=launches <= 10, **details)
    return launches <= 10


def launches_of(call, options) -> int:
    """Returns how many kernels and fills a call starts on a GPU; on the host, how many operators write tensors."""
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CUDA] if options.device == "cuda" else [activity.CPU]
    with torch.profiler.profile(activities=activities) as told:
        call()
        synchronize(options.device)
    if options.device == "cuda":
        return sum(event.count for event in told.key_averages() if event.device_type.name == "CUDA")
    counted = ("aten::zero_", "octile::run_pieces", "c10d::allreduce_")
    return sum(event.count for event in told.key_averages() if event.key in counted)


# ---- overlap


class Gemm:
    """A blockwise GEMM of the C API with a limit of multiprocessors."""

    def __init__(self, m: int, n: int, k: int, device: str) -> None:
        a = ot.quantize(torch.randn(m, k, device=device, dtype=torch.bfloat16))
        b = ot.quantize(torch.randn(n, k, device=device, dtype=torch.bfloat16), granularity="128x128")
        self.device, self.kept = device, (a, b, torch.empty(m, n, dtype=torch.bfloat16, device=device))
        problem = gemm_text(a.type, b.type, n, k, "bf16", promote_of(None, a.type))
        library, self.plan = ctypes.c_void_p(), ctypes.c_void_p()
        api = _c.api()
        _c.check(api.octile_library_create(None, ctypes.byref(library)))
        name = "host" if device == "cpu" else f"cuda:{torch.cuda.current_device()}"
        _c.check(api.octile_plan_create(library, name.encode(), problem.encode(), ctypes.byref(self.plan)))
        prepare = api.octile_plan_prepare
        prepare.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
        _c.check(prepare(self.plan, m, m, 0))
        size = ctypes.c_size_t()
        _c.check(api.octile_plan_workspace_size(self.plan, m, ctypes.byref(size)))
        self.space = torch.empty(size.value + 16, dtype=torch.uint8, device=device)
        self.args = _c.GemmArgs(struct_size=ctypes.sizeof(_c.GemmArgs), tokens=m)
        self.args.a, self.args.lda, self.args.a_scale = a.codes.data_ptr(), k, a.scales.data_ptr()
        self.args.b, self.args.ldb, self.args.b_scale = b.codes.data_ptr(), k, b.scales.data_ptr()
        self.args.d = self.kept[2].data_ptr()
        self.args.workspace = -(-self.space.data_ptr() // 16) * 16 if size.value else None
        self.args.workspace_bytes = size.value

    def run(self, sm_limit: int) -> torch.Tensor:
        """Enqueues the GEMM on the current stream. Returns D."""
        self.args.sm_limit = sm_limit
        stream = None if self.device == "cpu" else torch.cuda.current_stream().cuda_stream
        _c.check(_c.api().octile_gemm_run(self.plan, ctypes.byref(self.args), stream))
        return self.kept[2]


def group_of(ctas: int, options) -> dist.ProcessGroup:
    """Returns a group whose collectives take at most ``ctas`` thread blocks."""
    if options.device == "cpu":
        return dist.new_group()
    settings = dist.ProcessGroupNCCL.Options()
    settings.config.max_ctas = ctas
    # Thread blocks in clusters find no place on the multiprocessors that a GEMM leaves free here and there.
    settings.config.cga_cluster_size = 1
    return dist.new_group(pg_options=settings)


def overlap(options, records: Records) -> bool:
    """Measures a GEMM beside an all-gather: each alone, and both together, over the longer of the two."""
    big, world, good = options.size == "8b", dist.get_world_size(), True
    m, n, k = (8192, 14336, 4096) if big else (64, 128, 128)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count if options.device == "cuda" else 4
    gemm = Gemm(m, n, k, options.device)
    whole = torch.empty(n * k * (2 if big else 1), dtype=torch.uint8, device=options.device)
    own = torch.zeros(whole.numel() // world, dtype=torch.uint8, device=options.device)
    unlimited = gemm.run(0).clone()
    for ctas in (4, 8, 16) if big else (1,):
        group = group_of(ctas, options)

        def both(group=group, limit=multiprocessors - ctas) -> None:
            work = dist.all_gather_into_tensor(whole, own, group=group, async_op=True)
            gemm.run(limit)
            work.wait()

        calls = {
            "gemm": lambda limit=multiprocessors - ctas: gemm.run(limit),
            "gather": lambda group=group: dist.all_gather_into_tensor(whole, own, group=group),
            "both": both,
        }
        times = rounds_of(calls, options)
        product, moved, together = (statistics.median(times[name]) for name in calls)
        same = gemm.run(multiprocessors - ctas).equal(unlimited)
        good &= same
        ratio = together / max(product, moved)
        print(
            f"overlap: {ctas} thread blocks for NCCL: GEMM {product:.0f} us, gather {moved:.0f} us, both "
            f"{together:.0f} us, {ratio:.3f} of the longer; D {'unchanged' if same else 'DIFFERS'}"
        )
        what = f"GEMM m={m} n={n} k={k} beside an all-gather of {whole.numel()} bytes max_ctas={ctas}"
        longer = [max(a, b) for a, b in zip(times["gemm"], times["gather"], strict=True)]
        peers = [peer_of("the longer alone", longer)]
        details = {"ranks": world, "gemm_us": product, "gather_us": moved, "sm_limit": multiprocessors - ctas}
        check, protocol = "D of all multiprocessors", protocol_of("stream", options.rounds)
        records.add(what, "us", times["both"], protocol, peers=peers, ok=same, check=check, **details)
    return good


# ---- losses


def losses(options, records: Records) -> bool:
    """Trains a small GPT in BF16 and in FP8 that travels, and compares their last losses."""
    sys.path.append(str(Path(__file__).parents[2] / "runtime" / "python" / "examples"))
    from train_gpt import Gpt

    big = options.size == "8b"
    width, layers, heads, context = (1024, 12, 16, 1024) if big else (64, 1, 2, 32)
    batch = 16 if big else 2
    text = b"".join(path.read_bytes() for path in sorted(Path(statistics.__file__).parent.glob("*.py")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def trained(name: str) -> list[float]:
        torch.manual_seed(0)
        with torch.device(options.device):
            model = Gpt(width, layers, heads, context, is_gated=True)
        if name != "bf16":
            ot.convert(model, name.partition("+")[0], min_dims=16)
            shard_fp8(model)
        for block in model.blocks:
            if not options.eager:
                block.compile()
            fully_shard(block, mp_policy=POLICY)
        fully_shard(model, mp_policy=POLICY)
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
        generator = torch.Generator().manual_seed(dist.get_rank())
        told = []
        for _ in range(options.loss_steps):
            at = torch.randint(len(data) - context - 1, (batch,), generator=generator)
            rows = torch.stack([data[i : i + context + 1] for i in at]).to(options.device)
            logits = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            told.append(loss.detach())
        mean = torch.stack(told)
        dist.all_reduce(mean, dist.ReduceOp.SUM)
        return (mean / dist.get_world_size()).tolist()

    reference, good = trained("bf16"), True
    for name in options.variants.split(","):
        if not name.endswith("+fp8"):
            continue
        ours, last = trained(name), min(20, options.loss_steps)
        a, b = (statistics.fmean(values[-last:]) for values in (ours, reference))
        error = a / b - 1
        print(f"losses: {name} {a:.4f}, BF16 {b:.4f}, {error:+.2%} over the last {last} of {options.loss_steps} steps")
        good &= abs(error) < 0.02
        what = f"FSDP2 GPT width={width} layers={layers} steps={options.loss_steps} recipe={name}"
        protocol = protocol_of("losses", interleaved=False)
        records.add(
            what, RATIO, b / a, protocol, peers=[peer_of("bf16")], ok=abs(error) < 0.02, ranks=dist.get_world_size()
        )
    return good
