"""The tables of docs/distributed.md."""

import re

from measurements import card, fields, median, newest_of_each, of_tool, peer_of, ratio
from tables import source, table

PATH = "docs/distributed.md"
#: Kinds of steps by their recipe, or by the name of the peer.
STEPS = {
    "bf16": "bf16",
    "blockwise": "blockwise, gathers bf16",
    "blockwise+fp8": "blockwise, `shard_fp8`",
    "tensorwise+fp8": "tensorwise, `shard_fp8`",
    "torchao": "torchao tensorwise, FP8 all-gather",
}


def fsdp_table(records):
    """Steps of a Llama under FSDP2: a row a kind, columns a card."""
    found = newest_of_each([r for r in of_tool(records, "fsdp.py") if r["what"].startswith("FSDP2 Llama ")])
    steps = {(card(r), r["part"], fields(r)["recipe"]): r for r in found}
    cards = sorted({name for name, _, _ in steps})

    def cell(name, part, kind):
        own = steps.get((name, part, kind))
        of = own or steps[name, part, "blockwise"]
        ms = median(own or peer_of(of, kind))
        peak = of["details"].get("peak_gb" if own else f"{kind}_peak_gb")
        # Peaks of one card: the H200's record of torchao has an unexplained peak.
        return f"{ms:.1f}" if name != cards[0] else f"{ms:.1f}, {peak:.1f}" if peak else f"{ms:.1f}, -"

    columns = [(name, part) for name in cards for part in ("resharded", "kept")]
    titles = []
    for name in cards:
        titles += [f"{source(r for key, r in steps.items() if key[0] == name)}, resharded", "kept"]
    rows = [[title, *(cell(name, part, kind) for name, part in columns)] for kind, title in STEPS.items()]
    return table(" | ".join(["a step under FSDP2", *titles]), rows)


def parts_table(records):
    """The other parts, each over the time of its alternative."""
    found = newest_of_each([r for tool in ("tensor_parallel.py", "expert_parallel.py") for r in of_tool(records, tool)])
    beside = newest_of_each([r for r in of_tool(records, "fsdp.py") if " beside an all-gather " in r["what"]])
    beside.sort(key=lambda r: -int(fields(r)["max_ctas"]))

    def cells(rows, *peers):
        return ", ".join(f"{1 / ratio(r, peer)[0]:.3f}" for r in rows for peer in peers or [None])

    def of(pattern):
        return [r for r in found if re.search(pattern, f"{r['what']} {r['part']}")]

    rows = [
        ["input of a tensor-parallel layer, 16384 tokens, 4096 and 8192 features: quantised and gathered; gathered in "
         "bf16, then quantised", cells(of("^TP input"))],
        ["a step of a tensor-parallel Llama block, eager; bf16, and the recipe that sends bf16",
         cells(of("^TP block"), "PyTorch BF16", "the recipe, BF16 sent")],
        ["experts' operands of 65,536 rows of 7168, forward, and forward and backward; sent in bf16",
         cells(of("operands of forward"))],
        ["a layer of 16 experts, 2048 inside; the recipe that sends bf16", cells(of("layer experts"), "bf16")],
        ["a GEMM of 8192 x 14336 x 4096 with `sm_limit` beside an all-gather by 16, 8 and 4 thread blocks; the longer "
         "of the two alone", cells(beside)],
    ]  # fmt: skip
    return table(f"a part; its alternative | of its time, {source(found)}", rows)


def written(text, records):
    """Returns a document with its tables made of the records. A table is known by the first cell of its heading."""
    for new in (fsdp_table(records), parts_table(records)):
        first = new[0].split(" | ")[0]
        pattern = re.compile(rf"^{re.escape(first)} \|.*\n(\|.*\n)+", re.MULTILINE)
        text, count = pattern.subn(lambda _, new=new: "\n".join(new) + "\n", text)
        if count != 1:
            raise SystemExit(f"pages.py: {PATH} has {count} tables that begin with '{first}'; allowed: one")
    return text
