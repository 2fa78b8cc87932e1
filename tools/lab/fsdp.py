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

import itertools
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from fsdp_parts import POLICY, gather, losses, overlap, quantise
from models import (
    Comparison,
    Trained,
    compare,
    convert,
    forget,
    is_other,
    llama,
    no_more,
    step_options,
    torchao_variants,
)
from ranks import equal, everywhere, joined
from records import Records, protocol_of
from timing import host_us
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import octile.torch as ot
from octile.torch.distributed import shard_fp8

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
        same = equal(ours, theirs)
        good &= everywhere(same, options.device)
        if not same:
            print(f"bits: {recipe}, {name}, reshard {reshard}, {dtype}: DIFFER", file=sys.stderr)
    print(f"bits: losses, gradients and masters are {'the same' if good else 'DIFFERENT'} over {world} ranks")
    return good


# ---- steps


def trained_shards(name: str, reshard: bool, ids: torch.Tensor, options) -> Trained:
    """Returns a sharded variant: "bf16", "torchao", or a recipe, with "+fp8" gathered in FP8."""

    def make() -> tuple:
        model, after = llama(options, torch.float32), no_more
        recipe, _, travels = name.partition("+")
        if name == "torchao":
            from torchao.float8 import (
                Float8LinearConfig,
                convert_to_float8_training,
                precompute_float8_dynamic_scale_for_fsdp,
            )

            convert_to_float8_training(model.model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
            after = lambda: precompute_float8_dynamic_scale_for_fsdp(model)  # noqa: E731
        else:
            convert(model, recipe, min_dims=options.min_dims)
        if travels:
            print(shard_fp8(model), flush=True)
        for layer in model.model.layers:
            if not options.eager:
                layer.compile()
            fully_shard(layer, mp_policy=POLICY, reshard_after_forward=reshard)
        fully_shard(model, mp_policy=POLICY, reshard_after_forward=reshard)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        return model, optimizer, lambda: model(input_ids=ids, labels=ids).loss, after

    return Trained(make, options)


def step(options, records: Records) -> bool:
    """Measures steps resharded after forward, and with weights kept until backward."""
    others = ["torchao"] if torchao_variants(options.device, "tensorwise") else []
    names = ["bf16", *options.variants.split(","), *others]
    shape = options.tokens // options.sequence, options.sequence
    torch.manual_seed(dist.get_rank())
    ids = torch.randint(options.vocabulary, shape, device=options.device)
    good = [steps_of(options, records, names, reshard, ids) for reshard in (True, False)]
    return all(good)


def steps_of(options, records: Records, names: list[str], reshard: bool, ids: torch.Tensor) -> bool:
    """Measures variants that take turns. Returns whether losses are BF16's."""
    variants = {name: trained_shards(name, reshard, ids, options) for name in names}
    host = {name: host_us(variant.step, options.steps, options.device) / 1e3 for name, variant in variants.items()}
    print(f"step: {', '.join(f'{name} {ms:.2f} ms' for name, ms in host.items())} of the host", flush=True)
    peaks = {f"{name}_peak_gb": variant.peak_bytes / 1e9 for name, variant in variants.items() if is_other(name)}
    how = Comparison(
        what=f"FSDP2 Llama size={options.size} layers={options.layers} tokens={options.tokens}",
        part="resharded" if reshard else "kept",
        protocol=protocol_of("stream", options.rounds, note=f"a round is {options.steps} steps with AdamW"),
        check="losses beside BF16's",
        error_of=Trained.loss_error,
        most=0.02,
        details=lambda name, variant, _bf16, error: {
            "ranks": dist.get_world_size(),
            "peak_gb": variant.peak_bytes / 1e9,
            "host_ms": host[name],
            **peaks,
            "loss_error": error,
        },
        begin=dist.barrier,
        everywhere=lambda good: everywhere(good, options.device),
    )
    good = compare(records, variants, options, how)
    del variants
    forget(options)
    return good


PARTS: dict[str, Callable] = {
    "bits": bits,
    "step": step,
    "gather": gather,
    "quantise": quantise,
    "overlap": overlap,
    "losses": losses,
}


def main() -> int:
    parser = step_options(__doc__, None, "8b", 3, min_dims="auto")
    parser.add_argument("--parts", default="bits,gather,quantise,overlap,step")
    parser.add_argument("--variants", default="blockwise,blockwise+fp8,tensorwise+fp8", help="beside bf16 and torchao")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--loss-steps", type=int, default=300)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    options.sequence = min(options.sequence, options.tokens)
    with joined(options.device) as is_first:
        if not is_first:
            sys.stdout, options.records = open(os.devnull, "w"), None  # noqa: SIM115
        records, good = Records(options.records, options.device), True
        for part in options.parts.split(","):
            good &= PARTS[part](options, records)
            sys.stdout.flush()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
