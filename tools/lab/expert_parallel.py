"""Experts that GPUs share, over NCCL: what FP8 rows cost on their way, beside BF16.

    torchrun --nproc-per-node=2 expert_parallel.py
    torchrun --nproc-per-node=2 expert_parallel.py --records FILE
    python expert_parallel.py --device cpu --rows 64 --columns 144 --inner 32 --experts 4 --top-k 2 --rounds 1 --times 1

A rank has --rows rows: those of rows / top_k tokens, each for top_k of --experts experts, which lie on all ranks. First
it checks bits: messages and requantised copies are the host's, rows that travelled in FP8 are those that travelled in
BF16 and were quantised afterwards, and so are a layer's results and gradients. Then it times, all variants in turn:

- dispatch: from tokens to operands of forward. FP8: quantise, sort, all-to-all, gather. BF16: sort, all-to-all, sort by
  expert, quantise. Also to the operands of forward and backward, where the transposed copy comes on top.
- layer: forward and backward of experts (gate, up and down), with FP8 rows, BF16 rows, and without FP8.

Prints a record for each (records.py) and a table. Exits with 1 if a check fails. With --device cpu it runs over gloo.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from ranks import equal, everywhere, joined
from records import Records, parser_of, peer_of, protocol_of
from timing import interleaved
from torch import nn

import octile.torch as ot
from octile.torch._operators import ops
from octile.torch.distributed import expert_functions as functions
from octile.torch.distributed import expert_parallel
from octile.torch.distributed.expert_exchange import Call, Spread, Way, find_way
from octile.torch.mixture import route
from octile.torch.recipes import as_recipe

WANTED = 0.62  #: of the time of BF16's dispatch
KIND = as_recipe("blockwise").activation


class GroupedExperts(nn.Module):
    """torchtitan's interface."""

    def __init__(self, experts: int, columns: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Parameter(torch.empty(experts, inner, columns)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(experts, columns, inner))
        for p in self.parameters():
            nn.init.normal_(p, std=0.02)

    def forward(self, x, num_tokens_per_expert):
        raise AssertionError("not converted")


class Rows(NamedTuple):
    """A rank's tokens and where their rows go."""

    x: torch.Tensor
    source: functions.Source
    counts: torch.Tensor
    way: Way


def own_rows(options) -> Rows:
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = options.rows // options.top_k
    x = torch.randn(tokens, options.columns, generator=generator).bfloat16().to(options.device)
    chosen = torch.rand(tokens, options.experts, generator=generator).topk(options.top_k).indices.to(options.device)
    sorted_rows = route(chosen, options.experts)
    source = functions.Source(sorted_rows.order, sorted_rows.places, options.top_k)
    spread = Spread(dist.group.WORLD, options.experts, options.columns, lambda: None, True)
    counts = sorted_rows.offsets.diff()
    call = Call(True, options.columns, torch.bfloat16, False, False)
    return Rows(x, source, counts, find_way(spread, counts, call))


# ---- dispatch


def fp8_rows(data: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    return functions.send(data.x, KIND, data.source, data.way)


def bf16_rows(data: Rows) -> torch.Tensor:
    rows = functions.to_experts(data.source.rows_of(data.x), data.way)
    return rows.index_select(0, data.way.index)


def dispatches(data: Rows) -> dict[str, dict[str, Callable[[], object]]]:
    """Returns what is compared: operands of forward, and of both passes."""

    def with_transposed(rows) -> None:
        ops.requantize_groups(*rows, data.way.offsets, KIND.text)

    return {
        "operands of forward": {
            "fp8": lambda: fp8_rows(data),
            "bf16": lambda: ops.quantize_one(bf16_rows(data), KIND.text, False),
        },
        "operands of forward and backward": {
            "fp8": lambda: with_transposed(fp8_rows(data)),
            "bf16": lambda: ops.quantize_both(bf16_rows(data), KIND.text),
        },
    }


# ---- a layer


def layer_of(variant: str, data: Rows, options) -> Callable[[], list[torch.Tensor]]:
    """Returns a step: forward and backward. It returns the result, and all gradients."""
    torch.manual_seed(1)
    model = nn.Sequential(GroupedExperts(options.experts, options.columns, options.inner)).bfloat16()
    ot.convert(model, "blockwise", min_dims=16)
    model = model.to(options.device)
    expert_parallel(model, dist.group.WORLD, "fp8" if variant in ("fp8", "afterwards") else "bf16")
    if variant == "without FP8":
        ot.set_fp8(model, False)
    rows = data.source.rows_of(data.x)

    def step() -> list[torch.Tensor]:
        x = rows.detach().requires_grad_()
        y = model[0](x, data.counts)
        y.backward(rows)
        gradients = [p.grad.to_local() for p in model.parameters()]
        model.zero_grad()
        return [y.detach(), x.grad, *gradients]

    return step


def quantised_afterwards(x, kind, source, way):
    rows = functions.to_experts(x if source is None else source.rows_of(x), way)
    return functions.Arrived(
        *ops.open_messages(ops.quantize_messages(rows, kind.text), way.index, kind.text, x.shape[1])
    )


# ---- checks


def checks(data: Rows, options) -> dict[str, bool]:
    """Returns what holds on all ranks."""
    messages, rows = ops.quantize_messages(data.x, KIND.text), fp8_rows(data)
    offsets = data.way.offsets
    found = {
        "messages are the host's": equal([messages], [ops.quantize_messages(data.x.cpu(), KIND.text)]),
        "rows are those quantised afterwards": equal(
            rows, [t if t.dim() == 2 and t.dtype != torch.float32 else t.reshape(-1)
                   for t in ops.quantize_one(bf16_rows(data), KIND.text, False)]
        ),
        "transposed copies are the host's": same_columns(
            ops.requantize_groups(*rows, offsets, KIND.text),
            ops.requantize_groups(*(t.cpu() for t in rows), offsets.cpu(), KIND.text), offsets,
        ),
    }  # fmt: skip
    ours = layer_of("fp8", data, options)()
    send, functions.send = functions.send, quantised_afterwards
    try:
        found["a layer is that quantised afterwards"] = equal(ours, layer_of("afterwards", data, options)())
    finally:
        functions.send = send
    return {name: everywhere(held, options.device) for name, held in found.items()}


def same_columns(ours, theirs, offsets: torch.Tensor) -> bool:
    """Compares transposed copies of groups up to the end of the last, behind which nothing is written."""
    columns = int(((offsets.diff() + 127) // 128 * 128).sum())
    blocks = columns // 128
    pairs = []
    for codes, scales in (ours, theirs):
        pairs.append([codes[:, :columns].contiguous(), scales.view(-1, codes.shape[0])[:blocks].contiguous()])
    return equal(*pairs)


def measure(records: Records | None, data: Rows, options) -> None:
    what = f"expert parallel ranks={dist.get_world_size()} rows={options.rows} columns={options.columns}"
    steps = dispatches(data)
    layers = {name: layer_of(name, data, options) for name in ("fp8", "bf16", "without FP8")}
    steps[f"layer experts={options.experts} inner={options.inner}"] = layers
    for part, variants in steps.items():
        for step in variants.values():
            step()
        taken = interleaved(variants, options.rounds, options.times, options.device)
        if records is None:
            continue
        mine = statistics.median(taken["fp8"])
        ratio = mine / statistics.median(taken["bf16"])
        peers = [peer_of(name, values, torch.__version__) for name, values in taken.items() if name != "fp8"]
        note = f"a round is {options.times} calls; all ranks call together"
        records.add(what, "us", taken["fp8"], protocol_of("stream", options.rounds, note=note), part=part, peers=peers,
                    ratio=ratio, top_k=options.top_k)  # fmt: skip
        told = "  ".join(f"{name} {statistics.median(values):10.1f}" for name, values in taken.items())
        wanted = f" (wanted {WANTED})" if part == "operands of forward" else ""
        print(f"{part:40} us: {told}  fp8/bf16 {ratio:.3f}{wanted}", flush=True)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=65536, help="of a rank: tokens times experts of a token")
    parser.add_argument("--columns", type=int, default=7168)
    parser.add_argument("--inner", type=int, default=2048)
    parser.add_argument("--experts", type=int, default=16, help="of all ranks")
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--times", type=int, default=5, help="calls of a round")
    options = parser.parse_args()
    with joined(options.device) as is_first:
        data = own_rows(options)
        held = checks(data, options)
        for name, ok in held.items() if is_first else ():
            print(f"{name}: {'good' if ok else 'WRONG'}", flush=True)
        measure(Records(options.records, options.device) if is_first else None, data, options)
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
