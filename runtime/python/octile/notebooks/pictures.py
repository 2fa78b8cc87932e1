"""The pictures of docs/fp8-notes.md, which notebooks draw too. `make plots` writes them."""

from __future__ import annotations

from pathlib import Path

from octile.notebooks import numbers, style, sums, tiles

_TERMS, _INTERVAL, _DRAW = 2048, "128", "uniform codes"


def of_notes(root: str | Path) -> dict[str, str]:
    """Returns the files, by name, for the source tree whose GPU report has the measured errors."""
    seen = sums.measured(root)
    # Without its day: a fresh report with the same errors leaves the picture as it is.
    source = f"GPU suite, {seen.card}"
    figures = {
        "fp8-codes": numbers.draw_codes(),
        "fp8-outlier": tiles.draw_sweep(tiles.sweep()),
        "fp8-sums": sums.draw_errors(sums.errors(_DRAW, _TERMS, _INTERVAL), seen, _INTERVAL, _TERMS, source),
    }
    return {name: style.svg_of(figure, "tools/plots/plot.py") for name, figure in figures.items()}
