#!/usr/bin/env python3
"""Draws docs/plots/*.svg: from docs/records/*.jsonl, and those of docs/fp8-notes.md as the notebooks do.

A file serves light and dark pages: its colours are variables that follow the reader's scheme. The same
inputs give the same bytes: no date, fixed ids, and layout by the one font that matplotlib carries. The
file has a line an axis, so that a new measurement changes few lines. `make plots` installs the pinned
matplotlib (tools/requirements/plots.txt), makes the package octile of the built library, and runs this.
"""

import math

import matplotlib
import measurements
from octile.notebooks import pictures
from octile.notebooks.style import LIGHT, SETTINGS, adapt, plain_axes

matplotlib.use("svg")
import matplotlib.pyplot as plt

RECORDS = measurements.load()
OUTPUT = measurements.ROOT / "docs" / "plots"


def dense_shapes():
    """GEMMs beside DeepGEMM and cuBLASLt, by m, n and k."""
    return {measurements.shape(r): r for r in measurements.forward(RECORDS, "deepgemm")}


def card_of(records):
    """The card that they were measured on: records of one file."""
    return measurements.card(next(iter(records)))


def save(figure, name):
    path = OUTPUT / f"{name}.svg"
    figure.patch.set_alpha(0.0)
    figure.savefig(path, metadata={"Date": None, "Creator": "tools/plots/plot.py"})
    plt.close(figure)
    path.write_text(adapt(path.read_text()))


def draw_speedup():
    """Speedup over the faster peer: a panel a token count, a row a weight."""
    colours = LIGHT
    shapes = dense_shapes()
    counts = sorted({m for m, _, _ in shapes})
    weights = sorted({(n, k) for _, n, k in shapes},
                     key=lambda nk: nk[0] * nk[1])
    # One mean for few tokens and one for many, as the text quotes them.
    means = {
        few: measurements.mean([measurements.faster_peer(r)[0] for (m, _, _), r in shapes.items() if (m <= 128) == few])
        for few in (True, False)
    }
    figure = plt.figure(figsize=(8.6, 3.5))
    left, width, step = 0.125, 0.2, 0.2165
    for i, m in enumerate(counts):
        axes = figure.add_axes([left + i * step, 0.215, width, 0.575])
        plain_axes(axes, colours, "x")
        axes.set_facecolor(colours["band"])
        axes.set_xlim(0.97, 1.72)
        axes.set_ylim(-0.6, len(weights) - 0.4)
        axes.set_xticks([1.0, 1.2, 1.4], ["1.0×", "1.2×", "1.4×"])
        axes.set_yticks(range(len(weights)),
                        [f"{n} × {k}" for n, k in weights] if i == 0 else [""] * len(weights))
        axes.set_title(f"{m} tokens", fontsize=10, color=colours["text"], pad=5)
        axes.axvline(1.0, color=colours["quiet"], linewidth=1.2)
        axes.axvline(means[m <= 128], color=colours["mark"], linewidth=1.4,
                     linestyle=(0, (4, 2.5)), zorder=4)
        for y, (n, k) in enumerate(weights):
            median, low, high = measurements.faster_peer(shapes[m, n, k])
            axes.barh(y, median - 1.0, left=1.0, height=0.62, color=colours["octile"], zorder=3)
            axes.plot([low, high], [y, y], color=colours["text"], linewidth=1.1, zorder=5)
            axes.text(1.7, y, f"{median:.2f}", ha="right", va="center_baseline", fontsize=8.5,
                      color=colours["text"], zorder=5)
    figure.text(left, 0.93, "Octile's FP8 GEMM against the faster of DeepGEMM and cuBLASLt",
                fontsize=12, color=colours["text"], weight="bold")
    figure.text(left - 0.012, 0.815, "n × k", fontsize=9, color=colours["quiet"], ha="right")
    figure.text(left, 0.085, f"Times as fast, in one interleaved run on an {card_of(shapes.values())}. "
                "Thin lines are 95 % intervals.", fontsize=9, color=colours["quiet"])
    figure.text(left, 0.03, f"Dashed: geometric mean, {means[True]:.2f}× up to 128 tokens and "
                f"{means[False]:.2f}× above.", fontsize=9, color=colours["mark"])
    save(figure, "gemm-speedup")


def moved_bytes(m, n, k):
    scales = 4 * (m * math.ceil(k / 128) + math.ceil(n / 128) * math.ceil(k / 128))
    return m * k + n * k + 2 * m * n + scales


def draw_rate():
    """The speed of the three implementations: bytes a second of few tokens, operations of many."""
    colours = LIGHT
    shapes = dense_shapes()
    counts = sorted({m for m, _, _ in shapes})
    weights = sorted({(n, k) for _, n, k in shapes}, key=lambda nk: -nk[0] * nk[1])
    series = [(None, "Octile", "octile"), ("deepgemm", "DeepGEMM", "first"), ("cublaslt", "cuBLASLt", "second")]
    figure = plt.figure(figsize=(8.6, 4.9))
    for i, m in enumerate(counts):
        few = m <= 128
        axes = figure.add_axes([0.065 + (i % 2) * 0.475, 0.56 - (i // 2) * 0.46, 0.45, 0.30])
        plain_axes(axes, colours, "y")
        if few:
            axes.set_ylim(0, 4.6)
            axes.set_yticks([0, 1, 2, 3, 4])
        else:
            axes.set_ylim(0, 1500)
            axes.set_yticks([0, 400, 800, 1200])
        unit = "TB/s" if few else "TFLOP/s"
        axes.set_title(f"{m} tokens, {unit}", fontsize=10, color=colours["text"], loc="left", pad=5)
        for j, (peer, _, colour) in enumerate(series):
            heights = []
            for n, k in weights:
                record = shapes[m, n, k]
                work = moved_bytes(m, n, k) / 1e6 if few else 2 * m * n * k / 1e6
                heights.append(work / measurements.median(record if peer is None else measurements.peer_of(record, peer)))
            axes.bar([x + (j - 1) * 0.27 for x in range(len(weights))], heights, 0.25,
                     color=colours[colour], zorder=3)
        axes.set_xticks(range(len(weights)), [f"{n}\n× {k}" for n, k in weights])
        axes.tick_params(axis="x", labelsize=8)
        axes.axhline(0, color=colours["quiet"], linewidth=1.0, zorder=4)
    figure.text(0.065, 0.955, f"The speed of each GEMM on an {card_of(shapes.values())}", fontsize=12, weight="bold",
                color=colours["text"])
    for j, (_, label, colour) in enumerate(series):
        x = (0.675, 0.775, 0.89)[j]
        figure.text(x, 0.957, "■", fontsize=11, color=colours[colour], ha="left")
        figure.text(x + 0.019, 0.957, label, fontsize=9.5, color=colours["text"], ha="left")
    save(figure, "gemm-rate")


# Names of the bars: section, then (label, the problem behind its shape by tools/bench's name).
QUANTISE_SECTIONS = [
    ("One output, row-wise", [
        ("1x128", "bf16 e4m3:1x128 row"), ("128x128", "bf16 e4m3:128x128 row"),
        ("1x32 (MX)", "bf16 e4m3:1x32 row"), ("32x32 (MX)", "bf16 e4m3:32x32 row"),
        ("per row", "bf16 e4m3:row row"), ("per tensor", "bf16 e4m3:tensor row"),
        ("per tensor, delayed", "bf16 e4m3:tensor row delayed"),
        ("1x128 of fp32", "fp32 e4m3:1x128 row"),
    ]),
    ("One output, transposed", [
        ("1x128", "bf16 e4m3:1x128 col"), ("128x128", "bf16 e4m3:128x128 col"),
        ("1x32 (MX)", "bf16 e4m3:1x32 col"),
    ]),
    ("Both outputs from one read", [
        ("1x128", "bf16 e4m3:1x128 both"), ("128x128", "bf16 e4m3:128x128 both"),
        ("1x32 (MX)", "bf16 e4m3:1x32 both"), ("32x32 (MX)", "bf16 e4m3:32x32 both"),
        ("per row", "bf16 e4m3:row both"), ("per tensor", "bf16 e4m3:tensor both"),
        ("1x128 of fp32", "fp32 e4m3:1x128 both"),
        ("1x128, bias gradient", "bf16 e4m3:1x128 both dbias"),
    ]),
    ("Fused source, 1x128", [
        ("SwiGLU, row-wise", "silu_mul bf16 e4m3:1x128 row"),
        ("SwiGLU, both", "silu_mul bf16 e4m3:1x128 both"),
        ("SwiGLU gradient, row-wise", "dsilu_mul bf16 e4m3:1x128 row"),
        ("SwiGLU gradient, both", "dsilu_mul bf16 e4m3:1x128 both"),
        ("GELU, row-wise", "gelu_tanh bf16 e4m3:1x128 row"),
        ("RMSNorm, row-wise", "rmsnorm bf16 e4m3:1x128 row"),
    ]),
    ("Token groups, 1x128", [
        ("contiguous, row-wise", "bf16 e4m3:1x128 row contiguous"),
        ("contiguous, transposed", "bf16 e4m3:1x128 col contiguous"),
        ("contiguous, both", "bf16 e4m3:1x128 both contiguous"),
        ("masked, row-wise", "bf16 e4m3:1x128 row masked"),
    ]),
    ("FP8 input", [
        ("quantise again, transposed", "e4m3:1x128 e4m3:1x128 col"),
        ("quantise again, both", "e4m3:1x128 e4m3:1x128 both"),
        ("dequantise to bf16", "dequantize e4m3:1x128 bf16 row"),
        ("transpose 128x128", "transpose e4m3:128x128 e4m3:128x128 col"),
    ]),
]


def bar_name(record):
    """The name that QUANTISE_SECTIONS have for the problem of a record."""
    f = measurements.fields(record)
    words = [] if f[""] == "quantize" else [f[""]]
    words += [f.get("src"), f["x"], f["q"], f["out"], f.get("policy"), f.get("group"), "dbias" if "dbias" in f else ""]
    return " ".join(word for word in words if word)


def large_quantisers():
    """Records of large tensors beside a stream; masked groups are 32 tensors of 1024 rows."""
    found = [r for r in measurements.of_tool(RECORDS, "octile bench") if measurements.peer_of(r, "stream")]
    found = [r for r in measurements.newest(found) if "rows=16384 " in r["what"] or "group=masked" in r["what"]]
    return {bar_name(r): r for r in found}


def draw_quantise():
    """Share of the stream of the same bytes, large tensors."""
    colours = LIGHT
    kernels = large_quantisers()
    columns = [QUANTISE_SECTIONS[:3], QUANTISE_SECTIONS[3:]]
    rows = max(sum(len(bars) + 1.5 for _, bars in column) for column in columns)
    figure = plt.figure(figsize=(8.6, 5.2))
    for i, column in enumerate(columns):
        axes = figure.add_axes([0.19 + i * 0.505, 0.075, 0.275, 0.84])
        plain_axes(axes, colours, "x")
        axes.set_xlim(0, 1.0)
        axes.set_ylim(rows - 0.6, -1.2)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
        ticks, labels, y = [], [], 0.0
        for title, bars in column:
            axes.text(0.0, y - 0.35, title, fontsize=9.5, weight="bold", ha="left", va="center",
                      color=colours["text"])
            y += 0.75
            for label, problem in bars:
                share = measurements.ratio(kernels[problem])[0]
                axes.barh(y, share, height=0.68, color=colours["octile"], zorder=3)
                axes.text(share - 0.015, y + 0.03, f"{100 * share:.1f}", ha="right", va="center",
                          fontsize=8, color=colours["page"], zorder=5)
                ticks.append(y)
                labels.append(label)
                y += 1.0
            y += 0.75
        axes.set_yticks(ticks, labels)
        axes.tick_params(axis="y", labelsize=8.8, colors=colours["text"])
    figure.text(0.04, 0.955, f"Quantisers: share of a stream of the same bytes, 16384 × 7168, {card_of(kernels.values())}",
                fontsize=12, weight="bold", color=colours["text"])
    save(figure, "quantise-share")


FEW_ROWS = [("1x128, row-wise", "q=e4m3:1x128 out=row"), ("128x128, row-wise", "q=e4m3:128x128 out=row"),
            ("1x128, both copies", "q=e4m3:1x128 out=both"), ("per tensor", "q=e4m3:tensor out=row")]


def draw_few_rows():
    """Time against rows, beside a stream of the same bytes and half a microsecond: a row of plots for each card."""
    colours = LIGHT
    found = measurements.of_tool(RECORDS, "octile bench quantize")
    cards = {name: measurements.newest([r for r in found if measurements.card(r) == name]) for name in sorted(map(measurements.card, found))}
    figure = plt.figure(figsize=(8.6, 2.2 * len(cards) + 0.3))
    height = 1 / (len(cards) + 0.12)
    for down, (name, times) in enumerate(cards.items()):
        bottom = 1 - (down + 1) * height - 0.06
        for i, (title, kind) in enumerate(FEW_ROWS):
            axes = figure.add_axes([0.06 + i * 0.24, bottom + 0.2 * height, 0.19, 0.62 * height])
            plain_axes(axes, colours, "both")
            points = [t for t in times if t["what"].endswith(kind)]
            rows = [t["details"]["tokens"] for t in points]
            bound = [measurements.median(measurements.peer_of(t)) + t["details"]["allowance_us"] for t in points]
            axes.loglog(rows, bound, color=colours["second"], linewidth=1.6, linestyle=(0, (3, 2)))
            axes.loglog(rows, [measurements.median(t) for t in points], color=colours["octile"], linewidth=2)
            axes.set_xlim(1, 4096)
            axes.set_ylim(0.9, 60)
            axes.set_xticks([1, 16, 256, 4096], ["1", "16", "256", "4096"])
            axes.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"] if i == 0 else [""] * 6)
            axes.minorticks_off()
            axes.set_title(f"{name}: {title}", fontsize=9, loc="left", color=colours["text"])
    figure.text(0.04, 0.955, "Quantisers of 7168 columns: us against rows", fontsize=12, weight="bold",
                color=colours["text"])
    figure.text(0.96, 0.957, "Octile", fontsize=9.5, ha="right", color=colours["octile"])
    figure.text(0.905, 0.957, "a stream of the same bytes + 0.5 us", fontsize=9.5, ha="right",
                color=colours["quiet"])
    save(figure, "few-rows")


LOSSES = (("bf16", "BF16, each seed", "second"), ("blockwise", "blockwise", "octile"),
          ("blockwise_hybrid", "blockwise_hybrid", "first"), ("tensorwise", "tensorwise", "mark"))


def mean_curves(runs, recipe):
    """The steps and the mean loss over the seeds of a recipe, or None."""
    curves = [run["samples"] for run in runs if run["what"].endswith(f" recipe={recipe}")]
    if not curves:
        return None
    steps = [runs[0]["protocol"]["rounds"] * (i + 0.5) / len(curves[0]) for i in range(len(curves[0]))]
    return steps, [sum(values) / len(curves) for values in zip(*curves, strict=True)]


def draw_losses():
    """Loss curves beside BF16's, and how far each is from the mean of BF16's seeds."""
    colours = LIGHT
    runs = [r for r in RECORDS if r.get("part") == "curve"]
    steps, plain = mean_curves(runs, "bf16")
    figure = plt.figure(figsize=(8.6, 3.4))
    curves, gaps = figure.add_axes([0.06, 0.14, 0.41, 0.58]), figure.add_axes([0.56, 0.14, 0.41, 0.58])
    of_bf16 = [run for run in runs if run["what"].endswith(" recipe=bf16")]
    seeds = [run["samples"] for run in of_bf16]
    for axes in (curves, gaps):
        plain_axes(axes, colours, "both")
        axes.set_xlim(0, 2 * steps[-1] - steps[-2])
        axes.set_xlabel("step", fontsize=9, color=colours["quiet"])
    for losses in seeds:
        curves.plot(steps, losses, color=colours["second"], linewidth=1)
        gaps.plot(steps, [100 * (a / b - 1) for a, b in zip(losses, plain, strict=True)], color=colours["second"],
                  linewidth=1)
    place = 0.97
    for recipe, name, colour in reversed(LOSSES):
        found = mean_curves(runs, recipe)
        if found is None:
            continue
        if recipe != "bf16":
            curves.plot(*found, color=colours[colour], linewidth=1.6)
            gaps.plot(steps, [100 * (a / b - 1) for a, b in zip(found[1], plain, strict=True)],
                      color=colours[colour], linewidth=1.6)
        figure.text(place, 0.84, name, fontsize=9.5, ha="right", color=colours[colour])
        place -= 0.012 * len(name)
    low = min(plain)
    curves.set_ylim(0.9 * low, min(max(plain), 3 * low))
    widest = max(abs(a / b - 1) for losses in seeds for a, b in zip(losses[len(plain) // 4:], plain[len(plain) // 4:]))
    gaps.set_ylim(-300 * max(widest, 0.001), 300 * max(widest, 0.001))
    curves.set_title("loss, nats a byte", fontsize=9.5, loc="left", color=colours["text"])
    gaps.set_title("% from the mean of BF16", fontsize=9.5, loc="left", color=colours["text"])
    model = of_bf16[0]["what"].split(" recipe=")[0]
    figure.text(0.04, 0.92, f"{model}, {measurements.card(of_bf16[0])}", fontsize=12, weight="bold", color=colours["text"])
    save(figure, "losses")


def main():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(SETTINGS):
        draw_speedup()
        draw_rate()
        draw_quantise()
        draw_few_rows()
        draw_losses()
    for name, text in pictures.of_notes(measurements.ROOT).items():
        (OUTPUT / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
