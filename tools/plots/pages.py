#!/usr/bin/env python3
"""Writes BENCHMARKS.md and the tables of docs/distributed.md from docs/records/*.jsonl (`make bench-pages`); --check
compares them, and README's numbers.

Each table is made of the newest file that has its measurements. docs/records.md describes records.
"""

import argparse
import json
import math
import pathlib
import re
import statistics
import sys

import distributed
from measurements import (
    ROOT,
    card,
    faster_peer,
    few_rows,
    fields,
    forward,
    groups,
    is_dense,
    layers,
    load,
    losses,
    mean,
    median,
    newest,
    newest_of_each,
    of_tool,
    peer_of,
    quantisers,
    ratio,
    scaled,
    shape,
    weight_gradients,
)
from tables import commit, source, source_and_commit, table


def us(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 20 else f"{value:.2f}"


def by(numbers):
    return " x ".join(map(str, numbers))


def slower(records, peer=None):
    """Returns how many of the measurements are slower than the peer, and which is the slowest."""
    ratios = [(ratio(r, peer)[0], r) for r in records]
    count = sum(value < 1 for value, _ in ratios)
    worst, of = min(ratios, key=lambda pair: pair[0])
    f = fields(of)
    name = by(shape(of)) if {"m", "n", "k"} <= f.keys() else of["what"]
    return count, f"{count} of {len(ratios)}", f"{worst:.3f} ({name})"


def dense_kinds(records):
    """Returns the GEMMs that are compared with cuBLASLt's, by their kind."""
    return {
        "forward and input gradients": forward(records, "cublaslt"),
        "weight gradients": weight_gradients(records),
        "scales per tensor": scaled(records, "tensor"),
        "scales per row": scaled(records, "row"),
    }


def dense_summary(records):
    rows = []
    for name, found in dense_kinds(records).items():
        axis = 2 if name.startswith("weight") else 0
        few, many = ([r for r in found if (shape(r)[axis] <= 128) == is_few] for is_few in (True, False))
        for label, part in [("any", found)] if len(found) < 10 else [("up to 128", few), ("above 128", many)]:
            if not part:
                continue
            values = [ratio(r, "cublaslt")[0] for r in part]
            _, count, worst = slower(part, "cublaslt")
            rows.append([name, label, source(part), str(len(part)), f"{mean(values):.3f}", count, worst])
    return table("GEMMs | tokens | measured on | shapes | over cuBLASLt | slower | at worst", rows)


def deepgemm_table(records):
    found = {shape(r): r for r in forward(records, "deepgemm")}
    weights = sorted({s[1:] for s in found})
    counts = sorted({s[0] for s in found})
    rows = [
        [by(w), *(f"{us(median(found[(m, *w)]))} us, {faster_peer(found[(m, *w)])[0]:.3f}" for m in counts)]
        for w in weights
    ]
    last = ["mean", *(f"{mean([faster_peer(r)[0] for s, r in found.items() if s[0] == m]):.3f}" for m in counts)]
    return table(" | ".join(["n x k", *(f"{m} tokens" for m in counts)]), [*rows, last])


def groups_table(records):
    rows = []
    found = groups(records)
    for kind in ("contiguous", "masked", "K"):
        for name in sorted({card(r) for r in found}, reverse=True):
            part = [r for r in found if card(r) == name and r["details"]["kind"] == kind]
            if not part:
                continue
            values = sorted((ratio(r)[0], f"{r['details']['groups']} x {r['details']['size']}") for r in part)
            rows.append(
                [
                    f"groups of {kind}" if kind == "K" else kind,
                    source(part),
                    str(len(part)),
                    f"{mean([v for v, _ in values]):.3f}",
                    f"{values[0][0]:.3f} ({values[0][1]})",
                    f"{values[-1][0]:.3f} ({values[-1][1]})",
                ]
            )
    return table("groups | measured on | cases | over DeepGEMM | least | most", rows)


def call_by_call(records, step):
    """Returns the time of a step call by call over that of its graph."""
    eager = next(
        r
        for r in records
        if (r["file"], r["what"]) == (step["file"], step["what"]) and r.get("part") == "step, call by call"
    )
    return 1 / median(eager) if eager["unit"] == "ratio" else median(eager) / median(step)


def steps_table(records, tool, axes, between, title):
    """The steps of a layer: a row for each recipe, a column for each case, which the axes tell apart."""
    found = newest(of_tool(records, tool, "step"))
    steps = {(fields(r)["recipe"], between.join(fields(r)[a] for a in axes)): r for r in found}
    recipes, cases = (list(dict.fromkeys(key[i] for key in steps)) for i in (0, 1))

    def row(recipe):
        cells = [f"{us(median(r))} us, {ratio(r)[0]:.3f}" for r in (steps[recipe, case] for case in cases)]
        calls = [call_by_call(records, steps[recipe, case]) for case in cases]
        return [recipe, *cells, f"{min(calls):.2f} to {max(calls):.2f}"]

    titles = [f"{title}, {source(found)}", *cases, "call by call"]
    return table(" | ".join(titles), [row(recipe) for recipe in recipes])


def expert_gemms_table(records):
    """The grouped GEMMs of a step of experts, beside one cuBLASLt GEMM in bf16 for each expert; nothing before such
    records exist."""
    found = [
        r for r in of_tool(records, "octile bench experts") if re.search("(fprop|dgrad|wgrad)$", r.get("part", ""))
    ]
    if not found:
        return []
    found = newest(found)
    cases = list(dict.fromkeys(r["what"] for r in found))
    cells = {(r["part"], r["what"]): f"{us(median(r))} us, {ratio(r)[0]:.3f}" for r in found}
    titles = [f"{f['model']}, {f['routing']}" for f in map(fields, ({"what": case} for case in cases))]
    rows = [[part, *(cells[part, case] for case in cases)] for part in dict.fromkeys(r["part"] for r in found)]
    return [
        "",
        f"Times, and speed relative to one cuBLASLt GEMM in bf16 for each expert ({source(found)}).",
        "",
        *table(" | ".join(["grouped GEMM", *titles]), rows),
    ]


GRANULARITIES = {"1x128": "1x128", "128x128": "128x128", "1x32": "1x32 (MX)", "row": "per row", "tensor": "per tensor"}


def quantisers_table(records):
    found = quantisers(records)

    def cell(scales, out):
        r = found.get(f"x=bf16 q=e4m3:{scales} out={out}")
        return "-" if r is None else f"{us(median(r))} us, {100 * ratio(r)[0]:.0f} %"

    rows = [[name, *(cell(scales, out) for out in ("row", "col", "both"))] for scales, name in GRANULARITIES.items()]
    return table("scales | row-wise | transposed | both", rows)


def layers_table(records):
    rows = []
    for r in layers(records):
        parts = {o.get("part"): o for o in records if o["file"] == r["file"] and o["what"] == r["what"]}
        f = fields(r)
        host = parts["host"]
        rows.append(
            [
                ", ".join(f[a] for a in ("tokens", "n", "k")),
                us(median(peer_of(r))),
                us(median(r)),
                f"{ratio(r)[0]:.3f}",
                f"{ratio(parts['graph'])[0]:.3f}",
                f"{median(peer_of(host)):.0f}, {median(host):.0f}",
                f"{1 / ratio(parts['kept for backward'])[0]:.3f}",
            ]
        )
    return table(
        "tokens, outputs, inputs | bf16 us | FP8 us | ratio | as a graph | host us, bf16 and FP8 | kept for backward",
        rows,
    )


def models(records):
    return newest_of_each([r for tool in ("models.py", "experts_model.py") for r in of_tool(records, tool)])


def models_table(records):
    """Whole models of transformers: a row a recipe, of the card that was measured last."""
    found = {}
    for r in models(records):
        size = {"8b": " of 8B's width", "large": " of 16 experts", "30b": " of 128 experts"}.get(fields(r)["size"], "")
        name = r["what"].split()[0] + size, fields(r)["recipe"]
        found[name] = {part: old for part, old in found.get(name, {}).items() if card(old) == card(r)} | {r["part"]: r}
    rows = []
    for name, parts in sorted(found.items()):
        row = [", ".join((*name, card(parts["eager"])))]
        for r in (parts["eager"], parts["compiled"]):
            peaks = [r["details"].get(f"{of}peak_gb") or r["details"][f"{of}peak_bytes"] / 1e9 for of in ("", "bf16_")]
            row += [f"{median(r):.1f}", f"{ratio(r, 'bf16')[0]:.3f}", "{:.2f}, {:.2f}".format(*peaks)]
        torchao = peer_of(parts["compiled"], "torchao tensorwise")
        rows.append([*row, f"{ratio(parts['compiled'], 'torchao tensorwise')[0]:.3f}" if torchao else "-"])
    columns = "ms, eager | over bf16 | peak GB, bf16's | ms, compiled | over bf16 | peak GB, bf16's"
    return table(f"a step of | {columns} | over torchao tensorwise", rows)


def experts(records):
    return newest_of_each(of_tool(records, "experts.py"))


def experts_table(records):
    """Modules of experts of transformers beside grouped products in bf16."""
    found = {}
    for r in experts(records):
        found.setdefault((*(int(fields(r)[a]) for a in ("rows", "experts", "hidden", "inner")), card(r)), {})[r["part"]] = r
    rows = []
    for (*sizes, of_card), parts in sorted(found.items()):
        row = [f"{', '.join(map(str, sizes))}, {of_card}"]
        for r in (parts["eager"], parts["compiled"]):
            row += [f"{us(median(peer_of(r)))}, {us(median(r))}", f"{ratio(r)[0]:.3f}"]
        rows.append(row)
    columns = "us, eager, bf16 and FP8 | over bf16 | us, compiled, bf16 and FP8 | over bf16"
    return table(f"rows, experts, hidden size, width | {columns}", rows)


def decoding(records):
    return newest_of_each(of_tool(records, "decode.py"))


def decoding_table(records):
    """A decode step without a CUDA graph: a row a kind of weights."""
    found = {}
    for r in decoding(records):
        found.setdefault((r["part"], card(r)), {})[int(fields(r)["batch"])] = r
    batches = sorted({batch for row in found.values() for batch in row})
    rows = [
        [", ".join(name), *(f"{median(row[b]) / 1e3:.2f}, {ratio(row[b])[0]:.3f}" for b in batches)]
        for name, row in found.items()
    ]
    return table(" | ".join(["ms and over bf16, by sequences", *map(str, batches)]), rows)


def losses_table(records):
    found = losses(records)
    kinds = ("training", "held out", "held out, in bf16")

    def cell(recipe, kind):
        r = found[recipe, kind]
        value = statistics.fmean(r["samples"]) if "samples" in r else r["median"]
        if not r.get("peers"):
            spread = r["details"]["spread"] if "details" in r else (max(r["samples"]) - min(r["samples"])) / value
            return f"{value:.4f}, seeds spread {100 * spread:.2f} %"
        over = (
            1 / ratio(r)[0]
            if "ratio" in peer_of(r)
            else statistics.fmean(a / b for a, b in zip(r["samples"], peer_of(r)["samples"]))
        )
        return f"{value:.4f}, {100 * (over - 1):+.2f} %"

    recipes = sorted({recipe for recipe, _ in found}, key=lambda recipe: (recipe != "bf16", recipe))
    return table(
        "recipe | " + " | ".join(kinds), [[recipe, *(cell(recipe, kind) for kind in kinds)] for recipe in recipes]
    )


LISTED = 5  # shapes that a sentence names


def gaps(records):
    """Returns a sentence for each kind of measurement of which Octile is the slower in some."""
    lines = []
    for what, found, peer, name in (
        ("Weight gradients", weight_gradients(records), "cublaslt", "cuBLASLt's"),
        ("Forward and input-gradient GEMMs", forward(records, "cublaslt"), "cublaslt", "cuBLASLt's"),
        ("Dense GEMMs", forward(records, "deepgemm"), "deepgemm", "DeepGEMM's"),
    ):
        count, part, _ = slower(found, peer)
        if count:
            below = sorted((ratio(r, peer)[0], by(shape(r))) for r in found)[: min(count, LISTED)]
            others = " and others" if count > LISTED else ""
            listed = ", ".join(f"{text} {value:.3f}" for value, text in below) + others
            lines.append(f"- **{what}**: {part} are slower than {name}: {listed}.")
    grouped = groups(records)
    for name in sorted({card(r) for r in grouped}):
        found = [r for r in grouped if card(r) == name]
        below = [r for r in found if ratio(r)[0] < 1]
        if below:
            worst = min(below, key=lambda r: ratio(r)[0])
            d = worst["details"]
            lines.append(
                f"- **Grouped GEMMs** on an {name}: {len(below)} of {len(found)} are slower than DeepGEMM's, at "
                f"worst {ratio(worst)[0]:.3f} ({d['kind']}, {d['groups']} x {d['size']})."
            )
    steps = [r for r in of_tool(records, "octile bench experts") if peer_of(r, "bf16")]
    below = [(ratio(r)[0], f"{r['part']}, {fields(r)['routing']}") for r in newest(steps) if ratio(r)[0] < 1]
    if below:
        listed = "; ".join(f"{text} {value:.3f}" for value, text in sorted(below))
        lines.append(f"- **GEMMs of experts**, speed relative to bf16: {listed}.")
    mx = newest([r for r in records if is_dense(r) and fields(r)["a"] == "e4m3:1x32" and peer_of(r, "bf16")])
    values = {b: [ratio(r, "bf16")[0] for r in mx if fields(r)["b"] == f"e4m3:{b}"] for b in ("32x32", "1x32")}
    listed = ", ".join(f"B in {b} blocks {min(v):.2f} to {max(v):.2f}" for b, v in values.items() if v)
    lines.append(f"- **MX**, speed relative to cuBLASLt's bf16 GEMM: {listed} ({source(mx)}).")
    few = few_rows(records)
    over = [
        median(r) / (median(peer_of(r)) + r["details"]["allowance_us"]) for r in few if int(fields(r)["rows"]) <= 128
    ]
    lines.append(
        f"- **Quantisers of up to 128 rows**: {sum(v > 1 for v in over)} of {len(over)} take longer than their bound, at "
        f"most {max(over):.1f} times ({source(few)})."
    )
    shares = [(100 * ratio(r)[0], text) for text, r in quantisers(records).items()]
    low, text = min(shares)
    lines.append(
        f"- **Quantisers of large tensors**: {sum(s < 90 for s, _ in shares)} of {len(shares)} stay below 90 % of the "
        f"stream's speed, at worst {low:.0f} % (`{text}`)."
    )
    below = [(ratio(r)[0], fields(r)) for r in layers(records) if ratio(r)[0] < 1]
    if below:
        listed = ", ".join(f"{f['n']} x {f['k']} with {f['tokens']} tokens {value:.3f}" for value, f in below)
        lines.append(f"- **PyTorch**, eager, relative to bf16: {listed}. `convert` leaves such layers in bf16.")
    generated = newest(of_tool(records, "transformers_generate.py"))
    rates = [f"{r['what'].split()[1]} {median(r):.0f}, in bf16 {median(peer_of(r)):.0f}" for r in generated]
    lines.append(f"- **Generation**, tokens/s: {'; '.join(rates)} ({source(generated)}).")
    sentry = newest([r for r in records if r.get("part", "").startswith("sentry")])
    most = max(1 / ratio(r)[0] - 1 for r in sentry)
    lines.append(
        f"- **The sentry** costs up to {100 * most:.1f} % of a GEMM, with the sum of squares ({source(sentry)})."
    )
    return lines


def picture(name, alt):
    return [f'<img src="docs/plots/{name}.svg" alt="{alt}">']


def page(records):
    """Returns BENCHMARKS.md."""
    dense = forward(records, "deepgemm")
    lines = """# Benchmarks

`make bench-pages` writes this page from [docs/records](docs/records.md). Each number is a record that names its commit.
Tables that README quotes name it too, if they have one. `tools/bench/pages.sh` measures all but the ratios to DeepGEMM
and torchao, losses, generation and the sentry. Attempts are in [docs/experiments](docs/experiments/benchmarks.md).

## Peers and method

- **Peers**: cuBLASLt with a 64 MB workspace and its heuristic's fastest algorithm, in FP8 and in bf16; DeepGEMM 2.6.1,
  driven by a script outside the project; torchao; `nn.Linear` in bf16; for quantisers a stream of the same bytes.
- **Timing**: replays of CUDA graphs take turns with the peer. Operands rotate through more than twice L2 (steps of
  layers: one set). A time is the median over rounds. A ratio is the median of each round's peer time over Octile's.
- **Compare only ratios of one run**: large FP8 GEMMs run at the card's power cap, and cards differ by a tenth.
- **Correctness**: GEMMs are compared with FP64 before they are timed, quantisers with the host reference, bit for bit.

## Dense GEMMs

""".splitlines()
    of = commit([r for found in dense_kinds(records).values() for r in found])
    lines += [
        "Scales are 1x128 by 128x128 with D in bf16; for weight gradients 1x128 by 1x128 with D added to fp32"
        f"{of and f' ({of})'}.",
        "",
    ]
    lines += dense_summary(records)
    lines += [
        "",
        "DeepSeek-V3's weights, 1x128 by 128x128, D in bf16: Octile's time, and its speed relative to the faster of "
        f"DeepGEMM and cuBLASLt ({source_and_commit(dense)}).",
        "",
    ]
    lines += deepgemm_table(records) + [""]
    lines += picture("gemm-rate", "TB/s at few tokens and TFLOP/s at many of Octile, DeepGEMM and cuBLASLt, by weight")
    lines += ["", "## Grouped GEMMs", ""] + groups_table(records)
    lines += expert_gemms_table(records)
    lines += [
        "",
        "## Steps of layers",
        "",
        "A step quantises X, W and dY and runs the GEMMs, as one CUDA graph. Cells show its time, and its speed relative",
        "to cuBLASLt's bf16 GEMMs alone (one for each expert). The last column is the time call by call over the graph's.",
        "",
    ]
    lines += steps_table(records, "octile bench linear", ("m", "n", "k"), " x ", "layer") + [""]
    lines += steps_table(records, "octile bench experts", ("model", "routing"), ", ", "experts")
    lines += [
        "",
        "## Quantisers",
        "",
        f"16384 x 7168, bf16 to E4M3: time, and share of the stream's speed "
        f"({source_and_commit(quantisers(records).values())}).",
        "",
    ]
    lines += quantisers_table(records) + [""]
    lines += picture("quantise-share", "Share of a stream of the same bytes for quantisers of 16384 x 7168")
    lines += [
        "",
        "Few rows of 7168 columns; bound: the stream's time and 0.5 us "
        f"({source(few_rows(records))}).",
    ]
    lines += picture("few-rows", "Time of quantisers of 7168 columns by rows, and their bound")
    lines += [
        "",
        "## PyTorch",
        "",
        f"`octile.torch.Linear` and `nn.Linear`, forward and backward ({source_and_commit(layers(records))}).",
        "",
    ]
    lines += layers_table(records)
    lines += [
        "",
        "Training steps of transformers models: 4 layers, 8192 tokens, AdamW "
        f"({source(models(records))}).",
        "",
    ]
    lines += models_table(records)
    lines += [
        "",
        "Experts of transformers, forward and backward, beside grouped bf16 GEMMs "
        f"({source(experts(records))}).",
        "",
    ]
    lines += experts_table(records)
    lines += [
        "",
        "A decode step of a Llama without a CUDA graph, 8 layers, by `decode.py` "
        f"({source(decoding(records))}).",
        "",
    ]
    lines += decoding_table(records)
    lines += [
        "",
        "Losses of a 151 M-parameter GPT, nats per byte, compared with bf16 "
        f"({source(losses(records).values())}).",
        "",
    ]
    lines += losses_table(records) + [""]
    lines += picture("losses", "Loss of a GPT trained in BF16 and in FP8, and the difference in per cent")
    lines += ["", "## Where Octile is slower", ""] + gaps(records)
    return "\n".join(wrapped(line) for line in lines) + "\n"


def wrapped(line, width=120):
    """Returns prose in lines of at most 120 columns; tables and HTML as they are."""
    if len(line) <= width or line.startswith(("|", "<", " ")):
        return line
    out, indent = [], "  " if line.startswith("- ") else ""
    words = line.split(" ")
    current = words[0]
    for word in words[1:]:
        if len(current) + 1 + len(word) > width:
            out.append(current)
            current = indent + word
        else:
            current += " " + word
    return "\n".join([*out, current])


NUMBERS = (
    "none",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
)


def word(number):
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def claims(records):
    """Returns README's sentences about speed, with the records' numbers."""
    dense = forward(records, "deepgemm")
    few, many = (mean([faster_peer(r)[0] for r in dense if (shape(r)[0] <= 128) == part]) for part in (True, False))
    gradients = weight_gradients(records)
    count, _, _ = slower(gradients, "cublaslt")
    worst = min(ratio(r, "cublaslt")[0] for r in gradients)
    middle = mean([ratio(r, "cublaslt")[0] for r in gradients])
    row_wise = [
        100 * ratio(r)[0]
        for text, r in quantisers(records).items()
        if re.fullmatch(r"x=bf16 q=e4m3:(1x128|128x128|1x32|32x32|row|tensor) out=row", text)
    ]
    large = next(r for r in layers(records) if fields(r)["tokens"] == fields(r)["n"] == fields(r)["k"] == "8192")
    plain, ours = (losses(records)[recipe, "held out, in bf16"] for recipe in ("bf16", "blockwise"))
    return [
        f"{few:.2f} times the speed of the faster of DeepGEMM and cuBLASLt up to 128 tokens, {many:.2f} times above",
        (
            f"{word(count).capitalize()} of {word(len(gradients))} weight gradients are slower than cuBLASLt's, at worst "
            f"{worst:.2f} times as fast"
        )
        if count
        else f"None of {word(len(gradients))} weight gradients is slower than cuBLASLt's; on average they are "
        f"{middle:.2f} times as fast",
        f"Row-wise quantisers of large tensors reach {math.floor(min(row_wise))} to {math.floor(max(row_wise))} % of the "
        "speed of a kernel that only moves the same bytes",
        f"forward and backward of one layer of 8192 x 8192 x 8192 are {ratio(large)[0]:.2f} times as fast as "
        "`nn.Linear`",
        f"within {abs(100 * (1 / ratio(ours)[0] - 1)):.2f} % of bf16's loss; with other seeds, bf16's loss varies by "
        f"{100 * plain['details']['spread']:.2f} %"
        if "details" in plain
        else "of bf16's loss",
    ]


def summary(path):
    """Prints the contents of a file of records: a row a tool and peer, with the mean ratio and how many are slower."""
    found = {}
    for record in map(json.loads, path.read_text().splitlines()):
        for peer in record.get("peers", [None]):
            found.setdefault((record["tool"], peer["name"] if peer else "-"), []).append(record)
    print(f"{'tool':24} {'peer':28} {'records':>7} {'mean':>7} {'slower':>7}  wrong")
    for (tool, name), records in found.items():
        ratios = [ratio(r, name)[0] for r in records] if name != "-" else []
        cells = f"{mean(ratios):7.3f} {sum(r < 1 for r in ratios):7}" if ratios else f"{'-':>7} {'-':>7}"
        print(f"{tool:24} {name:28} {len(records):7} {cells}  {sum(not r['ok'] for r in records)}")


def check(root, records):
    """Returns a sentence for each difference of BENCHMARKS.md, docs/distributed.md and README.md from the records."""
    wrong = []
    text = page(records)
    if (root / "BENCHMARKS.md").read_text() != text:
        wrong.append("BENCHMARKS.md differs from docs/records; `make bench-pages` writes it")
    lines = text.count("\n")
    if lines > 150:
        wrong.append(f"BENCHMARKS.md has {lines} lines; allowed: 150")
    commits = sorted(set(re.findall("commit ([0-9a-f]{7})", text)))
    if len(commits) > 4:
        wrong.append(f"BENCHMARKS.md names the commits {', '.join(commits)}; allowed: four")
    text = (root / distributed.PATH).read_text()
    if distributed.written(text, records) != text:
        wrong.append(f"{distributed.PATH} differs from docs/records; `make bench-pages` writes its tables")
    readme = " ".join((root / "README.md").read_text().split())
    wrong += [
        f'README.md lacks a sentence that docs/records gives: "{claim}"' for claim in claims(records) if claim not in
        readme
    ]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="name the differences and write nothing")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the source tree")
    parser.add_argument(
        "--summary", type=pathlib.Path, metavar="FILE", help="print the contents of a file of records instead"
    )
    options = parser.parse_args()
    if options.summary:
        summary(options.summary)
        return 0
    records = load(options.root)
    if not options.check:
        (options.root / "BENCHMARKS.md").write_text(page(records))
        path = options.root / distributed.PATH
        path.write_text(distributed.written(path.read_text(), records))
        return 0
    wrong = check(options.root, records)
    for sentence in wrong:
        print(f"pages.py: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
