#!/usr/bin/env python3
"""Draws docs/plots/*.svg from docs/records/*.jsonl (`make plots`); --check says which of them differ.

A file serves light and dark pages: its colours follow the reader's scheme. The same records give the same bytes, and
other measurements change a line or two of a panel: the axes of a panel are one line, and what is measured another.
"""

import argparse
import math
import sys
from html import escape

import measurements

# The fonts that the reader's machine draws the text in.
FONTS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"

# Colours on light pages, and on dark ones.
COLOURS = {
    "text": ("#1f2328", "#e6edf3"),
    "quiet": ("#59636e", "#9198a1"),
    "grid": ("#d1d9e0", "#343b45"),
    "band": ("#f3f5f8", "#161c24"),
    "page": ("#ffffff", "#0d1117"),
    "octile": ("#0b63ce", "#58a6ff"),
    "first": ("#d9822b", "#e3a04f"),
    "second": ("#8c959f", "#7d8590"),
    "mark": ("#b3261e", "#ff8b7e"),
}
WIDTH = 620


def number(value):
    """Returns a coordinate with one digit behind the point."""
    return f"{round(value, 1) + 0.0:.6g}"


def points(pairs):
    return " ".join(f"{number(x)},{number(y)}" for x, y in pairs)


def text(x, y, words, colour="text", size=9.0, anchor="start", bold=False):
    weight = ' font-weight="bold"' * bold
    place = f'x="{number(x)}" y="{number(y)}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text class="{colour}" {place}{weight}>{escape(words)}</text>'


def line(pairs, colour, width, dash=""):
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline class="{colour}" stroke-width="{width:g}"{dashed} points="{points(pairs)}"/>'


def bars(boxes, colour):
    """Returns filled boxes of x, y, width and height as one path."""
    path = "".join(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h{number(-w)}z" for x, y, w, h in boxes)
    return f'<path class="{colour}" d="{path}"/>'


class Panel:
    """Axes at a place of the picture: left, top, width and height, between limits, which may be logarithmic."""

    def __init__(self, place, x_limits, y_limits, log=False):
        self.left, self.top, self.width, self.height = place
        self.x_limits, self.y_limits, self.log = x_limits, y_limits, log

    def part(self, value, limits):
        low, high = limits
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low)

    def x(self, value):
        return self.left + self.width * self.part(value, self.x_limits)

    def y(self, value):
        return self.top + self.height * (1 - self.part(value, self.y_limits))

    def at(self, xs, ys):
        return [(self.x(x), self.y(y)) for x, y in zip(xs, ys, strict=True)]

    def axes(self, title, x_ticks, y_ticks, grid, size=8.5):
        """Returns the grid ("x", "y" or "xy"), the labels of ticks, by their values, and the title."""
        right, bottom = self.left + self.width, self.top + self.height
        down = [((self.x(v), self.top), (self.x(v), bottom)) for v in x_ticks if "x" in grid]
        across = [((self.left, self.y(v)), (right, self.y(v))) for v in y_ticks if "y" in grid]
        path = "".join(f"M{points([a])}L{points([b])}" for a, b in down + across)
        parts = [f'<path class="grid" stroke="currentColor" stroke-width=".8" d="{path}"/>']
        for value, label in x_ticks.items():
            for i, words in enumerate(label.split("\n")):
                parts.append(text(self.x(value), bottom + (1.4 + 1.15 * i) * size, words, "quiet", size, "middle"))
        parts += [
            text(self.left - 4, self.y(v) + 0.35 * size, label, "quiet", size, "end") for v, label in y_ticks.items()
        ]
        return "".join([*parts, text(self.left, self.top - 6, title, size=10)])

    def clipped(self, parts):
        """Returns what is drawn inside of the panel alone."""
        box = f'width="{number(self.width)}" height="{number(self.height)}"'
        view = f'viewBox="{number(self.left)} {number(self.top)} {number(self.width)} {number(self.height)}"'
        return f'<svg x="{number(self.left)}" y="{number(self.top)}" {box} {view}>{"".join(parts)}</svg>'


def picture(height, lines):
    """Returns the file: the lines are elements."""
    light, dark = ("".join(f".{name}{{color:{of[i]}}}" for name, of in COLOURS.items()) for i in (0, 1))
    forms = "text,path{fill:currentColor}polyline{fill:none;stroke:currentColor}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 4 // 3}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="{FONTS}">',
        f"<style>{forms}{light}@media (prefers-color-scheme:dark){{{dark}}}</style>",
        *lines,
        "</svg>\n",
    ])  # fmt: skip


def card_of(records):
    """Returns the card that they were measured on: records of one file."""
    return measurements.card(next(iter(records)))


def draw_speedup(records):
    """Speedup over the faster peer: a panel a token count, a row a weight."""
    shapes = {measurements.shape(r): r for r in measurements.forward(records, "deepgemm")}
    counts = sorted({m for m, _, _ in shapes})
    weights = sorted({(n, k) for _, n, k in shapes}, key=lambda nk: nk[0] * nk[1])
    # One mean for few tokens and one for many, as the text quotes them.
    means = {
        few: measurements.mean([measurements.faster_peer(r)[0] for (m, _, _), r in shapes.items() if (m <= 128) == few])
        for few in (True, False)
    }
    lines = [text(78, 20, "Octile's FP8 GEMM against the faster of DeepGEMM and cuBLASLt", size=12, bold=True)
             + text(70, 48, "n × k", "quiet", 9, "end")]
    for i, m in enumerate(counts):
        panel = Panel((78 + i * 134, 54, 124, 145), (0.97, 1.72), (len(weights) - 0.4, -0.6))
        ticks = {y: f"{n} × {k}" if i == 0 else "" for y, (n, k) in enumerate(reversed(weights))}
        band = bars([(panel.left, panel.top, panel.width, panel.height)], "band")
        one = line(panel.at([1, 1], panel.y_limits), "quiet", 1.2)
        lines.append(band + panel.axes(f"{m} tokens", {1.0: "1.0×", 1.2: "1.2×", 1.4: "1.4×"}, ticks, "x") + one)
        boxes, intervals, labels = [], [], []
        for y, (n, k) in enumerate(reversed(weights)):
            median, low, high = measurements.faster_peer(shapes[m, n, k])
            top = panel.y(y) - 7
            boxes.append((panel.x(min(1, median)), top, abs(panel.x(median) - panel.x(1)), 14))
            intervals.append(f"M{points(panel.at([low], [y]))}L{points(panel.at([high], [y]))}")
            labels.append(text(panel.x(1.71), panel.y(y) + 3, f"{median:.2f}", size=8.5, anchor="end"))
        interval = f'<path class="text" stroke="currentColor" stroke-width="1.1" d="{"".join(intervals)}"/>'
        mean = line(panel.at([means[m <= 128]] * 2, panel.y_limits), "mark", 1.4, "4 2.5")
        lines.append(bars(boxes, "octile") + interval + mean + "".join(labels))
    lines.append(text(78, 231, f"Times as fast, in one interleaved run on an {card_of(shapes.values())}. Thin lines are "
                      "95 % intervals.", "quiet"))
    lines.append(text(78, 245, f"Dashed: geometric mean, {means[True]:.2f}× up to 128 tokens and {means[False]:.2f}× "
                      "above.", "mark"))
    return picture(254, lines)


def moved_bytes(m, n, k):
    scales = 4 * (m * math.ceil(k / 128) + math.ceil(n / 128) * math.ceil(k / 128))
    return m * k + n * k + 2 * m * n + scales


def draw_rate(records):
    """Rates of the three implementations: bytes a second of few tokens, operations of many."""
    shapes = {measurements.shape(r): r for r in measurements.forward(records, "deepgemm")}
    counts = sorted({m for m, _, _ in shapes})
    weights = sorted({(n, k) for _, n, k in shapes}, key=lambda nk: nk[0] * nk[1])
    series = [(None, "Octile", "octile"), ("deepgemm", "DeepGEMM", "first"), ("cublaslt", "cuBLASLt", "second")]
    lines = [text(40, 18, f"What each GEMM reaches on an {card_of(shapes.values())}", size=12, bold=True)]
    lines.append("".join(bars([(x, 9, 9, 9)], colour) + text(x + 13, 17, label, size=9.5)
                         for x, (_, label, colour) in zip((415, 478, 552), series, strict=True)))
    for i, m in enumerate(counts):
        few = m <= 128
        place = (40 + i % 2 * 300, 48 + i // 2 * 160, 272, 106)
        panel = Panel(place, (-0.5, len(weights) - 0.5), (0, 4.6 if few else 1500))
        ticks = {n: str(n) for n in ((0, 1, 2, 3, 4) if few else (0, 400, 800, 1200))}
        names = {x: f"{n}\n× {k}" for x, (n, k) in enumerate(weights)}
        title = f"{m} tokens, {'TB/s' if few else 'TFLOP/s'}"
        lines.append(panel.axes(title, names, ticks, "y", 8) + line(panel.at(panel.x_limits, [0, 0]), "quiet", 1))
        drawn = []
        for j, (peer, _, colour) in enumerate(series):
            boxes = []
            for x, (n, k) in enumerate(weights):
                record = shapes[m, n, k]
                us = measurements.median(record if peer is None else measurements.peer_of(record, peer))
                top = panel.y((moved_bytes(m, n, k) if few else 2 * m * n * k) / 1e6 / us)
                boxes.append((panel.x(x + (j - 1) * 0.27 - 0.125), top, 0.25 * panel.width / len(weights),
                              panel.y(0) - top))
            drawn.append(bars(boxes, colour))
        lines.append("".join(drawn))
    return picture(352, lines)


# Names of the bars: section, then (label, what tools/bench calls the problem behind its shape).
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
    """Returns what QUANTISE_SECTIONS call the problem of a record."""
    f = measurements.fields(record)
    words = [] if f[""] == "quantize" else [f[""]]
    words += [f.get("src"), f["x"], f["q"], f["out"], f.get("policy"), f.get("group"), "dbias" if "dbias" in f else ""]
    return " ".join(word for word in words if word)


def large_quantisers(records):
    """Records of large tensors beside a stream; masked groups are 32 tensors of 1024 rows."""
    found = [r for r in measurements.of_tool(records, "octile bench") if measurements.peer_of(r, "stream")]
    found = [r for r in measurements.newest(found) if "rows=16384 " in r["what"] or "group=masked" in r["what"]]
    return {bar_name(r): r for r in found}


def draw_quantise(records):
    """Share of the stream of the same bytes, large tensors."""
    kernels = large_quantisers(records)
    lines = [text(24, 18, f"Quantisers: share of a stream of the same bytes, 16384 × 7168, {card_of(kernels.values())}",
                  size=12, bold=True)]
    for i, sections in enumerate((QUANTISE_SECTIONS[:3], QUANTISE_SECTIONS[3:])):
        panel = Panel((136 + i * 310, 30, 158, 300), (0, 1), (1, 0))
        ticks = {0: "0", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1: "100 %"}
        names, boxes, labels, y = [], [], [], panel.top + 8
        for title, problems in sections:
            names.append(text(panel.left, y + 3, title, size=9.5, bold=True))
            y += 12
            for label, problem in problems:
                share = measurements.ratio(kernels[problem])[0]
                names.append(text(panel.left - 4, y + 3, label, size=8.8, anchor="end"))
                boxes.append((panel.left, y - 4.6, panel.x(share) - panel.left, 9.2))
                labels.append(text(panel.x(share) - 3, y + 2.9, f"{100 * share:.1f}", "page", 8, "end"))
                y += 13.2
            y += 8
        lines.append(panel.axes("", ticks, {}, "x") + "".join(names))
        lines.append(bars(boxes, "octile") + "".join(labels))
    return picture(350, lines)


FEW_ROWS = [("1x128, row-wise", "q=e4m3:1x128 out=row"), ("128x128, row-wise", "q=e4m3:128x128 out=row"),
            ("1x128, both copies", "q=e4m3:1x128 out=both"), ("per tensor", "q=e4m3:tensor out=row")]


def draw_few_rows(records):
    """Time against rows, beside a stream of the same bytes and half a microsecond: a row of plots for each card."""
    found = measurements.of_tool(records, "octile bench quantize")
    cards = sorted({measurements.card(r) for r in found})
    lines = [text(24, 18, "Quantisers of 7168 columns: us against rows", size=12, bold=True)
             + text(596, 18, "Octile", "octile", 9.5, "end")
             + text(556, 18, "a stream of the same bytes + 0.5 us", "quiet", 9.5, "end")]
    for down, name in enumerate(cards):
        times = measurements.newest([r for r in found if measurements.card(r) == name])
        for i, (title, kind) in enumerate(FEW_ROWS):
            panel = Panel((34 + i * 150, 52 + down * 158, 122, 104), (1, 4096), (0.9, 60), log=True)
            us = {n: str(n) if i == 0 else "" for n in (1, 2, 5, 10, 20, 50)}
            lines.append(panel.axes(f"{name}: {title}", {n: str(n) for n in (1, 16, 256, 4096)}, us, "xy", 8))
            measured = sorted((r for r in times if r["what"].endswith(kind)), key=lambda r: r["details"]["tokens"])
            rows = [r["details"]["tokens"] for r in measured]
            bound = [measurements.median(measurements.peer_of(r)) + r["details"]["allowance_us"] for r in measured]
            lines.append(line(panel.at(rows, bound), "second", 1.6, "3 2")
                         + line(panel.at(rows, map(measurements.median, measured)), "octile", 2))
    return picture(36 + 158 * len(cards), lines)


LOSSES = (("bf16", "BF16, each seed", "second"), ("blockwise", "blockwise", "octile"),
          ("blockwise_hybrid", "blockwise_hybrid", "first"), ("tensorwise", "tensorwise", "mark"))


def mean_curves(runs, recipe):
    """Returns the steps and the mean loss over the seeds of a recipe, or None."""
    curves = [run["samples"] for run in runs if run["what"].endswith(f" recipe={recipe}")]
    if not curves:
        return None
    steps = [runs[0]["protocol"]["rounds"] * (i + 0.5) / len(curves[0]) for i in range(len(curves[0]))]
    return steps, [sum(values) / len(curves) for values in zip(*curves, strict=True)]


def round_ticks(low, high):
    """Returns some four round values between two, with their labels."""
    step = next(s for e in range(-6, 9) for s in (1 * 10.0**e, 2 * 10.0**e, 5 * 10.0**e) if (high - low) / s <= 6)
    return {i * step: f"{i * step:g}" for i in range(math.ceil(low / step), math.floor(high / step) + 1)}


def draw_losses(records):
    """Loss curves beside BF16's, and how far each is from the mean of BF16's seeds."""
    runs = [r for r in records if r.get("part") == "curve"]
    steps, plain = mean_curves(runs, "bf16")
    of_bf16 = [run for run in runs if run["what"].endswith(" recipe=bf16")]
    seeds, low = [run["samples"] for run in of_bf16], min(plain)
    late = len(plain) // 4
    widest = max(abs(a / b - 1) for losses in seeds for a, b in zip(losses[late:], plain[late:], strict=True))
    gap, x_limits = 300 * max(widest, 0.001), (0, 2 * steps[-1] - steps[-2])
    curves = Panel((38, 62, 254, 142), x_limits, (0.9 * low, min(max(plain), 3 * low)))
    gaps = Panel((347, 62, 254, 142), x_limits, (-gap, gap))
    model = of_bf16[0]["what"].split(" recipe=")[0]
    lines = [text(24, 18, f"{model}, {measurements.card(of_bf16[0])}", size=12, bold=True)]
    for panel, title in ((curves, "loss, nats a byte"), (gaps, "% from the mean of BF16")):
        lines.append(panel.axes(title, round_ticks(*x_limits), round_ticks(*panel.y_limits), "xy", 9)
                     + text(panel.left + panel.width / 2, 230, "step", "quiet", 9, "middle"))
    drawn = {curves: [], gaps: []}

    def draw(losses, colour, width):
        drawn[curves].append(line(curves.at(steps, losses), colour, width))
        percent = [100 * (a / b - 1) for a, b in zip(losses, plain, strict=True)]
        drawn[gaps].append(line(gaps.at(steps, percent), colour, width))

    for losses in seeds:
        draw(losses, "second", 1)
    place = 600
    for recipe, name, colour in reversed(LOSSES):
        found = mean_curves(runs, recipe)
        if found is None:
            continue
        if recipe != "bf16":
            draw(found[1], colour, 1.6)
        lines.append(text(place, 40, name, colour, 9.5, "end"))
        place -= 7 * len(name) if len(name) < 12 else 6 * len(name)
    lines += [panel.clipped(parts) for panel, parts in drawn.items()]
    return picture(240, lines)


PLOTS = {
    "gemm-speedup": draw_speedup,
    "gemm-rate": draw_rate,
    "quantise-share": draw_quantise,
    "few-rows": draw_few_rows,
    "losses": draw_losses,
}


def check(root, records):
    """Returns which plots are not what the records say."""
    paths = {name: root / "docs" / "plots" / f"{name}.svg" for name in PLOTS}
    return [
        f"docs/plots/{name}.svg is not what docs/records gives; `make plots` draws it"
        for name, path in paths.items()
        if not path.exists() or path.read_text() != PLOTS[name](records)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say what differs and write nothing")
    options = parser.parse_args()
    records = measurements.load()
    if not options.check:
        for name, draw in PLOTS.items():
            (measurements.ROOT / "docs" / "plots" / f"{name}.svg").write_text(draw(records))
        return 0
    wrong = check(measurements.ROOT, records)
    for sentence in wrong:
        print(f"plot.py: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
