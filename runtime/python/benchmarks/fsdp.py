"""FSDP2 that gathers weights in FP8, on two GPUs and more of one host: bits, steps, memory, and what the parts take.

    torchrun --nproc-per-node 2 fsdp.py                       # all parts but the losses
    torchrun --nproc-per-node 2 fsdp.py --parts bits,step     # some of them
    torchrun --nproc-per-node 2 fsdp.py --parts losses        # 300 steps of a small GPT beside BF16
    torchrun --nproc-per-node 2 fsdp.py --device cpu --size tiny    # a trial without GPUs, by gloo; or python fsdp.py

| part | checks and measures |
|---|---|
| bits | losses, gradients and masters of `shard_fp8` have the bits of FSDP2 that gathers the weights |
| step | a step of a Llama of transformers, resharded after forward and kept: time and peak memory, beside others |
| gather | the all-gather of one weight alone, and FSDP2's `unshard` of it, in FP8 and in BF16 |
| quantise | quantising the shards of the model, beside a stream of as many bytes |
| overlap | a GEMM with `sm_limit` beside an all-gather with `max_ctas`: both together over the longer alone |
| losses | losses of train_gpt.py's model, beside BF16 |

Parameters are float32 and gathered as bfloat16 or FP8; each layer is compiled; AdamW is fused. Variants take turns in
one process group. Every part prints a line with its figures, and rank 0 its records (records.py). Exits with 1 if a
check fails.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from fsdp_parts import gather, losses, overlap, quantise
from models import SIZES, allocated, llama, peak
from records import Records, add_option, peer_of, protocol_of
from timing import host_us, synchronize, wall_us
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import octile.torch as ot
from octile.torch.distributed import shard_fp8

POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


# ---- bits


def trained(options, recipe: str, travels: bool, reshard: bool, mesh, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Returns losses, gradients and masters of two steps of two microbatches, of a model with ragged shards."""
    torch.manual_seed(0)
    sizes = (144, 272, 400, 160) if options.size == "tiny" else (1040, 4112, 2064, 528)
    with torch.device(options.device):
        layers = [nn.Linear(k, n, bias=i == 0) for i, (k, n) in enumerate(itertools.pairwise(sizes))]
        model = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.LayerNorm(sizes[2]), layers[2])
    ot.convert(model, recipe, min_dims=16, preset="all-linear")
    if travels:
        shard_fp8(model)
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    results = []
    for step in range(2):
        for microbatch in range(2):
            seed = dist.get_rank() * 100 + step * 10 + microbatch
            x = torch.randn(77, sizes[0], generator=torch.Generator().manual_seed(seed)).to(options.device)
            model.set_requires_gradient_sync(microbatch == 1)
            loss = model(x).float().square().mean()
            loss.backward()
            results.append(loss.detach())
        results += [p.grad.to_local().clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return results + [p.to_local().detach().clone() for p in model.parameters()]


def bits(options, records: Records) -> bool:
    """Compares runs that gather FP8 with runs that gather the weights."""
    world, good = dist.get_world_size(), True
    meshes = {"1-D": dist.init_device_mesh(options.device, (world,))}
    for replicas in sorted({1, world}):
        shape = (replicas, world // replicas)
        meshes[f"{replicas} replicas"] = dist.init_device_mesh(options.device, shape, mesh_dim_names=("r", "s"))
    cases = itertools.product(
        ("blockwise", "blockwise:f32", "tensorwise"), meshes.items(), (True, False), (torch.bfloat16, None)
    )
    for recipe, (name, mesh), reshard, dtype in cases if options.size != "tiny" else itertools.islice(cases, 1):
        ours, theirs = (trained(options, recipe, travels, reshard, mesh, dtype) for travels in (True, False))
        same = all(a.equal(b) for a, b in zip(ours, theirs, strict=True))
        good &= everywhere(same, options)
        if not same:
            print(f"bits: {recipe}, {name}, reshard {reshard}, {dtype}: DIFFER", file=sys.stderr)
    print(f"bits: losses, gradients and masters are {'the same' if good else 'DIFFERENT'} over {world} ranks")
    return good


def everywhere(good: bool, options) -> bool:
    """Returns whether it is true on every rank."""
    word = torch.tensor(int(good), device=options.device)
    dist.all_reduce(word, dist.ReduceOp.MIN)
    return bool(word.item())


# ---- steps


class Variant:
    """A sharded model with its optimizer. name: "bf16", "torchao", or a recipe, with "+fp8" gathered in FP8."""

    def __init__(self, name: str, reshard: bool, ids: torch.Tensor, options) -> None:
        self.name, self.ids, before = name, ids, allocated(options.device)
        self.model, self.after_step = llama(options, torch.float32), lambda: None
        self.sharding = self.converted(options)
        for layer in self.model.model.layers:
            if not options.eager:
                layer.compile()
            fully_shard(layer, mp_policy=POLICY, reshard_after_forward=reshard)
        fully_shard(self.model, mp_policy=POLICY, reshard_after_forward=reshard)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.losses = [self.step() for _ in range(options.warm_steps)]
        synchronize(options.device)
        self.losses = [loss.item() for loss in self.losses]
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.step()
        self.peak_gb = (peak(options.device) - before) / 1e9

    def converted(self, options):
        """Converts the model. Returns what ``shard_fp8`` did, if it did."""
        if self.name == "torchao":
            from torchao.float8 import (
                Float8LinearConfig,
                convert_to_float8_training,
                precompute_float8_dynamic_scale_for_fsdp,
            )

            config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
            convert_to_float8_training(self.model.model, config=config)
            self.after_step = lambda: precompute_float8_dynamic_scale_for_fsdp(self.model)
        elif self.name != "bf16":
            recipe, _, travels = self.name.partition("+")
            print(ot.convert(self.model, recipe, min_dims=options.min_dims))
            if travels:
                sharding = shard_fp8(self.model)
                print(sharding, flush=True)
                return sharding
        return None

    def step(self) -> torch.Tensor:
        """Forward, backward, and the optimizer. Returns the loss."""
        loss = self.model(input_ids=self.ids, labels=self.ids).loss
        loss.backward()
        self.optimizer.step()
        self.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def step(options, records: Records) -> bool:
    """Measures steps resharded after forward, and with weights kept until backward."""
    names = ["bf16", *options.variants.split(",")]
    try:
        import torchao

        names += ["torchao"] if options.device == "cuda" else []
        print(f"torchao {torchao.__version__}")
    except ImportError:
        print("torchao is not installed")
    shape = options.tokens // options.sequence, options.sequence
    torch.manual_seed(dist.get_rank())
    ids = torch.randint(options.vocabulary, shape, device=options.device)
    good = [steps_of(options, records, names, reshard, ids) for reshard in (True, False)]
    return all(good)


def steps_of(options, records: Records, names: list[str], reshard: bool, ids: torch.Tensor) -> bool:
    """Measures variants that take turns. Returns whether losses are BF16's."""
    variants = {name: Variant(name, reshard, ids, options) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name, variant in variants.items():
            dist.barrier()
            times[name].append(wall_us(variant.step, options.steps, options.device) / 1e3)
    host = {name: host_us(variant.step, options.steps, options.device) / 1e3 for name, variant in variants.items()}
    if options.profile:
        for variant in variants.values():
            profile(variant, options)
    part, good = "resharded" if reshard else "kept", True
    others = [name for name in names if name in ("bf16", "torchao")]
    for name, variant in variants.items():
        median, reference = statistics.median(times[name]), variants["bf16"]
        error = max(abs(a - b) / b for a, b in zip(variant.losses, reference.losses, strict=True))
        told = f"{median:8.2f} ms {variant.peak_gb:6.2f} GB, host {host[name]:.2f} ms, losses within {error:.2g}"
        print(f"step: {part:9s} {name:16s} {told}", flush=True)
        if name in others:
            continue
        good &= everywhere(error < 0.02, options)
        what = f"FSDP2 Llama size={options.size} layers={options.layers} tokens={options.tokens} recipe={name}"
        protocol = protocol_of("stream", options.rounds, note=f"a round is {options.steps} steps with AdamW")
        peers = [peer_of(other, times[other]) for other in others]
        peaks = {f"{other}_peak_gb": variants[other].peak_gb for other in others}
        details = {"ranks": dist.get_world_size(), "peak_gb": variant.peak_gb, "host_ms": host[name], **peaks}
        details["loss_error"] = error
        check = "losses beside BF16's"
        records.add(what, "ms", times[name], protocol, part=part, peers=peers, ok=error < 0.02, check=check, **details)
    del variants, variant, reference
    torch._dynamo.reset()
    gc.collect()  # what is freed later would be missing in the next variant's peak
    if options.device == "cuda":
        torch.cuda.empty_cache()
    return good


def profile(variant: Variant, options) -> None:
    """Prints the kernels of a step, those that take most first, and how long the host took."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as told:
        variant.step()
        synchronize(options.device)
    kernels = [event for event in told.key_averages() if event.device_type.name == "CUDA"]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    for event in kernels[:40]:
        print(f"{variant.name}: {event.self_device_time_total / 1e3:8.3f} ms {event.count:5d} x {event.key[:120]}")
    print(told.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60), flush=True)


PARTS: dict[str, Callable] = {
    "bits": bits,
    "step": step,
    "gather": gather,
    "quantise": quantise,
    "overlap": overlap,
    "losses": losses,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="bits,gather,quantise,overlap,step")
    parser.add_argument("--variants", default="blockwise,blockwise+fp8,tensorwise+fp8", help="beside bf16 and torchao")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm-steps", type=int, default=3)
    parser.add_argument("--loss-steps", type=int, default=300)
    parser.add_argument("--min-dims", default="auto", type=lambda text: text if text == "auto" else int(text))
    parser.add_argument("--size", default="8b", choices=list(SIZES))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--profile", action="store_true")
    add_option(parser)
    options = parser.parse_args()
    options.sequence = min(options.sequence, options.tokens)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo", **alone)
    if dist.get_rank() != 0:
        sys.stdout, options.records = open(os.devnull, "w"), None  # noqa: SIM115
    records, good = Records(options.records, options.device), True
    try:
        for part in options.parts.split(","):
            good &= PARTS[part](options, records)
            sys.stdout.flush()
    finally:
        dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
