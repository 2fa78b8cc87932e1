"""Whether FP8 pays in the layers of a model: measured layers, estimates of all, and memory beside the card's.

Estimates are those of ``octile shapes --estimate``; measured are the layers whose records the package ships, by which
``octile.torch.convert`` chooses. The two never share a line: an estimate is dashed or hatched.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from octile import _paths
from octile.notebooks import records, style
from octile.notebooks.explorer import Explorer, choice

TOKENS = (128, 512, 1024, 2048, 4096, 8192, 16384)
MODES = ("training", "prefill")
DEVICES = ("h100", "h200", "h20", "l40s", "rtx4090", "rtx5090", "rtxpro6000", "b200", "b300")
RANKS = (1, 2, 4, 8, 16, 32, 64)
#: From which gain on an estimate says that FP8 pays, and up to which that it does not (docs/models.md).
PAYS, LOSES = 1.25, 0.8


@cache
def run_shapes(*words: str) -> dict:
    """Returns what ``octile shapes`` says. Raises ValueError with its sentence if it refuses."""
    done = subprocess.run([_paths.command(), "shapes", *words, "--json"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(" ".join(done.stderr.split()))
    return json.loads(done.stdout)


@cache
def models() -> tuple[str, ...]:
    """Returns the names of the shipped models."""
    return tuple(model["model"] for model in run_shapes()["shipped"])


class Gain(NamedTuple):
    """BF16's time over FP8's."""

    tokens: int
    median: float
    low: float
    high: float
    verdict: str
    by: str  #: "measured", "near" or "estimated"
    bf16_us: float
    gemms_us: float
    quantize_us: float


class Layer(NamedTuple):
    name: str
    n: int
    k: int
    copies: int
    groups: int  #: experts; 0: a linear layer
    gains: tuple[Gain, ...]  #: by TOKENS
    measured: tuple[Gain, ...]  #: of shipped records of a layer of this size: call by call in PyTorch

    def at(self, tokens: int) -> Gain:
        return next(gain for gain in self.gains if gain.tokens == tokens)


class Memory(NamedTuple):
    """Bytes of a rank, by their kind."""

    bf16: dict[str, float]
    fp8: dict[str, float]
    primary: dict[str, float]  #: of ``primary_fp8``; empty to serve
    card: float  #: 0: not known


class Answer(NamedTuple):
    """The words of ``octile shapes`` on a model. A refusal has the sentence, and nothing else."""

    layers: tuple[Layer, ...]
    sums: dict[str, object]
    memory: Memory | None
    refusal: str


def gain_of(layer: dict) -> Gain:
    """Returns the gain of a layer of ``octile shapes --estimate --json``."""
    gain = layer["gain"]
    times = (layer[name]["median"] for name in ("bf16_us", "fp8_gemms_us", "quantize_us"))
    return Gain(layer["tokens"], gain["median"], gain["low"], gain["high"], layer["verdict"], layer["by"], *times)


@cache
def _shipped() -> tuple[dict, ...]:
    path = Path(__file__).parents[1] / "torch" / "layers.jsonl"
    return tuple(json.loads(line) for line in path.read_text().splitlines())


def measured_layers(device: str, mode: str, n: int, k: int) -> tuple[Gain, ...]:
    """Returns the shipped measurements of a layer [n, k] on the card."""
    found = []
    for record in _shipped():
        of = records.fields(record)
        same = (of["mode"], of["n"], of["k"]) == (mode, str(n), str(k))
        if same and records.card(record).lower() == device:
            gain = record["median"]
            low, high = record.get("interval", (gain, gain))
            found.append(
                Gain(
                    int(of["tokens"]),
                    gain,
                    low,
                    high,
                    record["details"]["verdict_eager"],
                    "measured",
                    *[float("nan")] * 3,
                )
            )
    return tuple(found)


def measured_source() -> str:
    """Returns where the shipped measurements of layers come from."""
    return records.source_of(_shipped()[0])


#: Bytes of a parameter in training: docs/torch.md, "Hold weights in FP8".
_STATE = {"fp32 masters": 4, "AdamW's moments": 8, "gradient": 2}
_GIB = 2.0**30


def _memory(model: dict, sums: dict, mode: str) -> Memory:
    parameters = sums["weight_bytes_bf16"] / 2
    others = sum(weight["layers"] * weight["parameters"] for weight in model["left_out"])
    card = float(model.get("device_memory_bytes", 0))
    if mode != "training":
        bf16 = {"weights": sums["weight_bytes_bf16"], "not in FP8": 2.0 * others}
        return Memory(bf16, {"weights": sums["weight_bytes_fp8"], "not in FP8": 2.0 * others}, {}, card)
    state = {name: float(size * (parameters + others)) for name, size in _STATE.items()}
    kept = [{"kept for backward": sums[f"kept_bytes_{kind}"]} for kind in ("bf16", "fp8")]
    bf16 = {"weights": 2.0 * parameters, "not in FP8": 2.0 * others, **state}
    fp8 = {**bf16, "FP8 copies": sums["copy_bytes_fp8"], **kept[1]}
    # The row-wise codes of the copies are the weights there, and their transposed codes are made when they are read.
    primary = {**bf16, "weights": sums["copy_bytes_fp8"] / 2, **kept[1]}
    return Memory({**bf16, **kept[0]}, fp8, primary, card)


@cache
def answer(
    model: str,
    tokens: int,
    tp: int = 1,
    ep: int = 1,
    mode: str = "training",
    device: str = "h100",
    recipe: str = "blockwise",
) -> Answer:
    """Returns whether FP8 pays in a shipped model on a rank of ``tp`` and ``ep``, for all of TOKENS, with the sums of
    ``tokens``."""
    words = ["--model", model, "--mode", mode, "--device", device, "--recipe", recipe, "--tp", str(tp), "--ep", str(ep)]
    try:
        shapes = run_shapes(*words, "--estimate", "--tokens", ",".join(map(str, TOKENS)))["models"][0]
    except ValueError as error:
        return Answer((), {}, None, str(error))
    layers: dict[str, list[dict]] = {}
    for layer in shapes["estimate"]["layers"]:
        layers.setdefault(layer["layer"], []).append(layer)
    made = []
    for name, of in layers.items():
        n, k, groups = of[0]["n"], of[0]["k"], of[0].get("groups", 0)
        seen = () if groups else measured_layers(device, mode, n, k)
        made.append(Layer(name, n, k, of[0]["copies"], groups, tuple(map(gain_of, of)), seen))
    sums = next(one for one in shapes["estimate"]["sums"] if one["tokens"] == tokens)
    return Answer(tuple(made), sums, _memory(shapes, sums, mode), "")


def draw_gains(found: Answer, tokens: int, device: str):
    """Draws the gain of each layer at a token count, and against all token counts those that were measured."""
    figure = style.figure(8.6, 1.6 + 0.25 * max(len(found.layers), 6))
    height = figure.get_figheight()
    bottom, tall = 0.5 / height, 1 - 1.45 / height
    bars = style.axes_in(figure, (0.24, bottom, 0.32, tall), "x")
    lines = style.axes_in(figure, (0.63, bottom, 0.34, tall))
    for y, layer in enumerate(found.layers):
        gain = layer.at(tokens)
        colour = {"pays": "third", "loses": "mark"}.get(gain.verdict, "second")
        measured = gain.by == "measured"
        bars.barh(
            y,
            gain.median - 1,
            left=1,
            height=0.62,
            facecolor=style.LIGHT[colour] if measured else "none",
            edgecolor=style.LIGHT[colour],
            hatch=None if measured else "////",
            linewidth=1.2,
        )
        bars.plot([gain.low, gain.high], [y, y], color=style.LIGHT["text"], linewidth=1.1)
        for one in layer.measured:
            if one.tokens == tokens:
                bars.plot([one.median], [y], "D", color=style.LIGHT["fourth"], markersize=6, zorder=5)
    bars.set_yticks(
        range(len(found.layers)), [layer.name.removeprefix("model.") for layer in found.layers], fontsize=8.5
    )
    bars.set_ylim(len(found.layers) - 0.4, -0.6)
    gains = [value for layer in found.layers for value in (layer.at(tokens).low, layer.at(tokens).high)]
    bars.set_xlim(min(0.6, *gains) - 0.05, max(1.6, *gains) + 0.05)
    bars.axvline(1, color=style.LIGHT["quiet"], linewidth=1.2)
    style.title(bars, f"BF16's time / FP8's, {tokens} tokens")
    _draw_lines(lines, found, tokens)
    style.title(lines, "against tokens")
    names = [("estimated, hatched and dashed:", "text"), ("pays", "third"), ("measure", "second"), ("loses", "mark")]
    style.key(figure, names, 1 - 0.32 / height, 0.03)
    figure.text(
        0.03,
        1 - 0.58 / height,
        "◆ measured: layers of this size in PyTorch, call by call, "
        + (measured_source() if any(layer.measured for layer in found.layers) else f"none on {device}"),
        fontsize=9.5,
        color=style.LIGHT["fourth"],
    )
    return figure


def _draw_lines(axes, found: Answer, tokens: int) -> None:
    for layer in {(layer.n, layer.k, layer.groups): layer for layer in found.layers}.values():
        axes.plot(
            [gain.tokens for gain in layer.gains],
            [gain.median for gain in layer.gains],
            linewidth=1.3,
            linestyle=(0, (4, 2)),
            color=style.LIGHT["octile"],
        )
        axes.plot(
            [gain.tokens for gain in layer.measured],
            [gain.median for gain in layer.measured],
            "D-",
            linewidth=1,
            markersize=4,
            color=style.LIGHT["fourth"],
        )
    axes.axvline(tokens, color=style.LIGHT["grid"], linewidth=3)
    axes.axhline(1, color=style.LIGHT["quiet"], linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_xlim(TOKENS[0], TOKENS[-1])
    axes.set_xticks([128, 512, 2048, 8192], ["128", "512", "2048", "8192"])
    axes.minorticks_off()
    axes.set_xlabel("tokens", fontsize=9, color=style.LIGHT["quiet"])


_PARTS = {
    "weights": "octile",
    "not in FP8": "second",
    "fp32 masters": "fourth",
    "AdamW's moments": "first",
    "gradient": "third",
    "FP8 copies": "mark",
    "kept for backward": "text",
}


def draw_memory(memory: Memory, device: str):
    """Draws what a rank holds in BF16 and in FP8, beside the card's memory. All of it is computed: hatched."""
    rows = [("BF16", memory.bf16), ("FP8", memory.fp8), *([("primary_fp8", memory.primary)] if memory.primary else [])]
    figure = style.figure(8.6, 1.15 + 0.36 * len(rows))
    height = figure.get_figheight()
    axes = style.axes_in(figure, (0.13, 0.45 / height, 0.84, 0.36 * len(rows) / height), "x")
    for y, (_, parts) in enumerate(rows):
        left = 0.0
        for name, size in parts.items():
            axes.barh(
                y,
                size / _GIB,
                left=left,
                height=0.62,
                facecolor="none",
                edgecolor=style.LIGHT[_PARTS[name]],
                hatch="////",
                linewidth=1,
            )
            left += size / _GIB
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    most = max(sum(parts.values()) for _, parts in rows)
    axes.set_xlim(0, 1.05 * max(most, memory.card) / _GIB)
    axes.set_xlabel("GiB of a rank, computed", fontsize=9, color=style.LIGHT["quiet"])
    if memory.card:
        axes.axvline(memory.card / _GIB, color=style.LIGHT["mark"], linewidth=2)
    names = [(name, _PARTS[name]) for name in memory.fp8]
    style.key(figure, names, 1 - 0.28 / height, 0.03, 9)
    if memory.card:
        figure.text(
            0.97,
            1 - 0.58 / height,
            f"line: {device}, {memory.card / _GIB:.0f} GiB",
            fontsize=9,
            ha="right",
            color=style.LIGHT["mark"],
        )
    return figure


class Pays(Explorer):
    """Whether FP8 pays in a model."""

    def controls(self):
        return {
            "model": choice("model", models(), "llama-3-8b"),
            "tokens": choice("tokens", TOKENS, 8192, slider=True),
            "tp": choice("tp", RANKS, 1, slider=True),
            "ep": choice("ep", RANKS, 1, slider=True),
            "mode": choice("mode", MODES, "training"),
            "device": choice("card", DEVICES, "h100"),
        }

    def compute(self, model, tokens, tp, ep, mode, device):
        return answer(model, tokens, tp, ep, mode, device)

    def page(self, result):
        from html import escape

        if result.refusal:
            return style.page_of(None, f"<p>{escape(result.refusal)}</p>")
        tokens, device = self.values["tokens"], self.values["device"]
        rows = []
        for layer in result.layers:
            gain = layer.at(tokens)
            seen = next((one for one in layer.measured if one.tokens == tokens), None)
            rows.append(
                [
                    layer.name,
                    f"{layer.copies} x [{layer.n}, {layer.k}]" + f" x {layer.groups}" * (layer.groups > 0),
                    gain.verdict,
                    gain.by,
                    f"{gain.median:.2f}",
                    f"{gain.low:.2f} to {gain.high:.2f}",
                    f"{seen.median:.2f}, {seen.verdict}" if seen else "-",
                ]
            )
        headings = ["layer", "weights", "verdict", "by", "gain", "95 %", "measured in PyTorch"]
        by = ", ".join(f"{count} {source}" for source, count in result.sums["by"].items() if count)
        words = result.sums.get("too_large") or (
            f"One pass of all layers: BF16 {result.sums['bf16_us'] / 1000:.1f} ms, FP8 "
            f"{result.sums['fp8_us'] / 1000:.1f} ms, the best mix {result.sums['best_mix_us'] / 1000:.1f} ms ({by})."
        )
        below = f"<p>{escape(words)}</p>" + style.table(headings, rows, words=4)
        memory = style.page_of(draw_memory(result.memory, device))
        return style.page_of(draw_gains(result, tokens, device), below) + memory
