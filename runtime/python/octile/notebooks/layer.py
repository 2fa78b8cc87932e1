"""The three products of a linear layer in a training step: what is quantised when, in which direction and format, what
is kept, and how long it takes.

The problems are those that the library names for a layer of a recipe (``octile_layer_problems``).
"""

from __future__ import annotations

import ctypes
import json
import tempfile
from functools import cache
from typing import NamedTuple

from octile import _c
from octile._recipes import ROWS
from octile._types import DTYPES, STORED, TensorType, codes_shape, one_of
from octile.notebooks import pays, records, style
from octile.notebooks.explorer import Explorer, choice

RECIPES = tuple(row.name for row in ROWS)
_TRAINS = _c.KEEP_X | _c.KEEP_W | _c.INPUT_GRADIENT | _c.WEIGHT_GRADIENT
_HISTORY = 16  # steps that delayed scaling remembers


class Copy(NamedTuple):
    """An FP8 copy of a tensor."""

    tensor: str  #: "X", "W" or "dY"
    made: str  #: "forward", "backward"
    direction: str  #: "row-wise" or "transposed"
    type: TensorType
    scale: str  #: "its own" or "of earlier steps"
    shape: tuple[int, int]
    read_by: str  #: the product
    kept: str

    @property
    def code_bytes(self) -> int:
        rows, cols = codes_shape(*self.shape, self.direction == "transposed")
        return rows * cols

    @property
    def scale_bytes(self) -> int:
        scaled = self.shape if self.direction == "row-wise" else self.shape[::-1]
        rows, cols = self.type.scale_shape(*scaled)
        return rows * cols * {"fp32": 4, "bf16": 2, "uint8": 1, "int32": 4}[STORED[self.type.scales]]

    @property
    def bytes(self) -> int:
        return self.code_bytes + self.scale_bytes


class Product(NamedTuple):
    """A GEMM of a step."""

    result: str  #: "Y", "dX" or "dW"
    formula: str
    formats: str
    promote: str
    operations: int


class Layer(NamedTuple):
    recipe: str
    tokens: int
    n: int
    k: int
    copies: tuple[Copy, ...]
    products: tuple[Product, ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the input that backward keeps. In BF16 they are 2 an element."""
        return sum(copy.bytes for copy in self.copies if copy.tensor == "X" and copy.kept)


# Which product reads which copy: docs/layers.md, "A step".
_READ_BY = {
    ("X", "row-wise"): "Y",
    ("W", "row-wise"): "Y",
    ("dY", "row-wise"): "dX",
    ("W", "transposed"): "dX",
    ("dY", "transposed"): "dW",
    ("X", "transposed"): "dW",
}
_KEPT = {
    ("X", "transposed"): "for backward",
    ("W", "row-wise"): "until W changes",
    ("W", "transposed"): "until W changes",
}
_FORMULAS = {"Y": "Y = X Wᵀ", "dX": "dX = dY W", "dW": "dW = dYᵀ X"}


def _fields(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split()[1:])


def _type_of(text: str) -> TensorType:
    dtype, granularity, *scales = text.split(":")
    return TensorType(dtype, granularity, *(scales or ["e8m0" if granularity in ("1x32", "32x32") else "f32"]))


def problems(recipe: str, n: int, k: int) -> tuple[list[str], list[str]]:
    """Returns the problems of forward and of backward in training, in the order of the calls."""
    row = ROWS[RECIPES.index(one_of("recipe", recipe, RECIPES))]
    desc = _c.LayerDesc(
        ctypes.sizeof(_c.LayerDesc), recipe.encode(), n, k, dtype=DTYPES["bf16"], history=_HISTORY if row.delayed else 0
    )
    forward, backward = (
        _c.layer_problems(desc, _TRAINS | without) for without in (_c.WITHOUT_BACKWARD, _c.WITHOUT_FORWARD)
    )
    return forward[:3], backward[:3]  # the problems behind them update delayed scales


@cache
def layer_of(recipe: str, tokens: int, n: int, k: int) -> Layer:
    """Returns the step of a linear layer [n, k]."""
    shapes = {"X": (tokens, k), "W": (n, k), "dY": (tokens, n)}
    copies, products = [], []
    named = zip(("forward", "backward"), problems(recipe, n, k), (("X", "W", "Y"), ("dY", "dX", "dW")))
    for when, texts, names in named:
        for text, name in zip(texts, names, strict=True):
            of = _fields(text)
            if text.startswith("gemm "):
                products.append(
                    Product(name, _FORMULAS[name], f"{of['a']} by {of['b']}", of["promote"], 2 * tokens * n * k)
                )
                continue
            directions = {"row": ["row-wise"], "col": ["transposed"], "both": ["row-wise", "transposed"]}[of["out"]]
            for direction in directions:
                scale = "of earlier steps" if of.get("policy") == "delayed" else "its own"
                copies.append(
                    Copy(
                        name,
                        when,
                        direction,
                        _type_of(of["q"]),
                        scale,
                        shapes[name],
                        _READ_BY[name, direction],
                        _KEPT.get((name, direction), ""),
                    )
                )
    return Layer(recipe, tokens, n, k, tuple(copies), tuple(products))


class Times(NamedTuple):
    """Microseconds of a step's parts, by name, in FP8 and in BF16."""

    fp8: dict[str, float]
    bf16: dict[str, float]
    source: str
    measured: bool


_MEASURED_PARTS = ("quantise X", "quantise W", "quantise dY", "fprop", "dgrad", "wgrad")


def measured_sizes(root=None) -> list[tuple[int, int, int]]:
    """Returns tokens, n and k of the layers that ``octile bench linear`` measured part by part, by any recipe."""
    found = set()
    for record in records.of_tool(records.load(root or records.source_tree()), "octile bench linear", "fprop"):
        of = records.fields(record)
        found.add((int(of["m"]), int(of["n"]), int(of["k"])))
    return sorted(found)


def times_of(recipe: str, tokens: int, n: int, k: int, root=None) -> Times:
    """Returns the measured times of the newest records of this layer, else estimates for an H200."""
    what = f"linear m={tokens} n={n} k={k} recipe={recipe}"
    found = [r for r in records.load(root or records.source_tree()) if r["what"] == what and r["unit"] == "us"]
    parts = {r["part"]: r for r in records.newest_of_each(found)}
    if all(name in parts for name in _MEASURED_PARTS):
        fp8 = {name: records.median(parts[name]) for name in _MEASURED_PARTS}
        bf16 = {name: records.median(records.peer_of(parts[name])) for name in _MEASURED_PARTS[3:]}
        return Times(fp8, bf16, records.source_of(parts["fprop"]), True)
    gain = _estimate(recipe, tokens, n, k)
    return Times(
        {"quantisers": gain.quantize_us, "products": gain.gemms_us},
        {"products": gain.bf16_us},
        "estimated for an H200",
        False,
    )


@cache
def _estimate(recipe: str, tokens: int, n: int, k: int) -> pays.Gain:
    weight = {"role": "layer", "layers": 1, "n": n, "k": k, "split": "-", "recipe": recipe}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"models": [{"model": "layer", "weights": [weight]}]}, file)
        file.flush()
        shapes = pays.run_shapes(
            "--model",
            file.name,
            "--estimate",
            "--device",
            "h200",
            "--mode",
            "training",
            "--tokens",
            str(tokens),
            "--recipe",
            recipe,
        )
    return pays.gain_of(shapes["models"][0]["estimate"]["layers"][0])


def kept_table(tokens: int = 8192, n: int = 8192, k: int = 8192):
    """Returns a table of the bytes that backward keeps of X, by recipe."""
    rows = [["BF16", f"{2 * tokens * k / 1e6:.1f}", "100 %"]]
    for recipe in RECIPES:
        if not recipe.endswith(":f32"):
            kept = layer_of(recipe, tokens, n, k).kept_bytes
            rows.append([recipe, f"{kept / 1e6:.1f}", f"{50 * kept / (tokens * k):.1f} %"])
    return style.show(below=style.table([f"X [{tokens}, {k}] kept for backward", "MB", "of BF16's"], rows))


_COLOURS = {
    "quantise X": "first",
    "quantise W": "first",
    "quantise dY": "first",
    "quantisers": "first",
    "fprop": "octile",
    "dgrad": "third",
    "wgrad": "fourth",
    "products": "octile",
}
_NAMES = {"fprop": "Y", "dgrad": "dX", "wgrad": "dW"}


def draw_layer(layer: Layer, times: Times):
    """Draws the copies of a step as bars of their bytes, and the times of its parts."""
    figure = style.figure(8.6, 4.3)
    copies = style.axes_in(figure, (0.2, 0.51, 0.775, 0.36), "x")
    for y, copy in enumerate(layer.copies):
        colour = style.LIGHT["octile" if copy.kept else "second"]
        copies.barh(y, copy.bytes / 1e6, height=0.62, color=colour)
        kept = f", kept {copy.kept}" if copy.kept else ""
        style.beside(copies, copy.bytes / 1e6, y, f"{copy.type} for {_FORMULAS[copy.read_by]}{kept}")
    copies.set_yticks(
        range(len(layer.copies)), [f"{c.tensor} {c.direction}, {c.made}" for c in layer.copies], fontsize=8.5
    )
    copies.set_ylim(len(layer.copies) - 0.4, -0.6)
    copies.set_xlim(0, 2.1 * max(copy.bytes for copy in layer.copies) / 1e6)
    style.title(copies, "FP8 copies of a step, MB")
    axes = style.axes_in(figure, (0.2, 0.12, 0.775, 0.20), "x")
    for y, parts in enumerate((times.fp8, times.bf16)):
        left = 0.0
        for name, us in parts.items():
            colour = style.LIGHT[_COLOURS[name]]
            axes.barh(
                y,
                us,
                left=left,
                height=0.66,
                facecolor=colour if times.measured else "none",
                edgecolor=style.LIGHT["page"] if times.measured else colour,
                linewidth=1,
                hatch=None if times.measured else "////",
            )
            left += us
        style.beside(axes, left, y, f"{left:.0f} us", 9)
    axes.set_yticks([0, 1], ["FP8", "BF16"])
    axes.set_ylim(1.6, -0.6)
    axes.set_xlim(0, 1.15 * max(sum(times.fp8.values()), sum(times.bf16.values())))
    axes.set_xlabel("us", fontsize=9, color=style.LIGHT["quiet"])
    style.title(axes, f"time of a step, {'measured: ' if times.measured else ''}{times.source}")
    style.key(figure, [("kept", "octile"), ("gone after its product", "second")], 0.955, 0.2)
    names = [(_NAMES.get(name, name), _COLOURS[name]) for name in times.fp8 if not name.startswith("quantise ")]
    style.key(figure, [*([("quantisers", "first")] if times.measured else []), *names], 0.41, 0.2, 9)
    return figure


class Products(Explorer):
    """A layer's step by a recipe."""

    def controls(self):
        sizes = [f"{tokens} tokens, [{n}, {k}]" for tokens, n, k in measured_sizes()]
        return {
            "recipe": choice("recipe", RECIPES, "blockwise"),
            "layer": choice("layer", sizes, sizes[-1]),
        }

    def compute(self, recipe, layer):
        tokens, n, k = (int(word) for word in layer.replace("tokens, [", "").replace(",", "").rstrip("]").split())
        return layer_of(recipe, tokens, n, k), times_of(recipe, tokens, n, k)

    def page(self, result):
        layer, times = result
        rows = [
            [
                f"{copy.tensor} [{copy.shape[0]}, {copy.shape[1]}]",
                f"{copy.made}, {copy.direction}",
                copy.type,
                copy.scale,
                _FORMULAS[copy.read_by],
                copy.kept or "-",
                f"{copy.code_bytes / 1e6:.1f}",
                f"{copy.scale_bytes / 1e6:.3f}",
            ]
            for copy in layer.copies
        ]
        headings = ["tensor", "quantised in", "type", "maximum", "read by", "kept", "codes, MB", "scales, MB"]
        tables = style.table(headings, rows, words=6)
        products = [[p.formula, p.formats, p.promote, f"{p.operations / 1e9:.0f}"] for p in layer.products]
        tables += style.table(["product", "formats", "promoted every", "Gflop"], products, words=2)
        bf16 = 2 * layer.tokens * layer.k
        tables += f"<p>Backward keeps {layer.kept_bytes / 1e6:.1f} MB of X, and in BF16 {bf16 / 1e6:.1f} MB.</p>"
        return style.page_of(draw_layer(layer, times), tables)
