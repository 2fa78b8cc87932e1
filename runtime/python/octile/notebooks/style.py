"""The colours of pictures, on light pages and on dark ones, and matplotlib's files as both kinds of pages show them.

A picture has the colours of light pages. ``adapt`` makes variables of them, which follow the reader's scheme: a file's
own for a browser, those of Jupyter's theme in a notebook.
"""

from __future__ import annotations

import io
import re

#: The fonts that the reader's machine draws the text in.
FONTS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"

#: Colours on light pages, and on dark ones.
COLOURS = {
    "text": ("#1f2328", "#e6edf3"),
    "quiet": ("#59636e", "#9198a1"),
    "grid": ("#d1d9e0", "#343b45"),
    "band": ("#f3f5f8", "#161c24"),
    "page": ("#ffffff", "#0d1117"),
    "octile": ("#0b63ce", "#58a6ff"),
    "first": ("#d9822b", "#e3a04f"),
    "second": ("#8c959f", "#7d8590"),
    "third": ("#1a7f5a", "#4fc08d"),
    "fourth": ("#8250df", "#b392f0"),
    "mark": ("#b3261e", "#ff8b7e"),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}

SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "octile",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "hatch.linewidth": 1.6,
}


def _file_style(svg: str) -> str:
    """Returns the style that gives the variables of a file their values."""
    used = [name for name in COLOURS if f"var(--{name})" in svg]
    light, dark = ("".join(f"--{name}:{COLOURS[name][i]};" for name in used) for i in (0, 1))
    return f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"


_ON_LIGHT, _ON_DARK = ("".join(f"--{name}:{of[i]};" for name, of in COLOURS.items()) for i in (0, 1))
# JupyterLab and nbconvert say of a page's body whether its theme is light, and VS Code whether it is dark.
_PAGE_STYLE = f"""<style>
.octile-picture {{{_ON_LIGHT} color: var(--text); max-width: 66em}}
@media (prefers-color-scheme: dark) {{
  body:not([data-jp-theme-light]):not(.vscode-body) .octile-picture {{{_ON_DARK}}}
}}
[data-jp-theme-light=false] .octile-picture, .vscode-dark .octile-picture {{{_ON_DARK}}}
.octile-picture svg {{width: 100%; height: auto}}
.octile-picture p {{margin: .4em 0}}
.octile-picture table {{color: var(--text); border-collapse: collapse; margin: .5em 0; font-size: 90%; display: block;
  overflow-x: auto}}
.octile-picture tr {{background: none !important}}
.octile-picture th, .octile-picture td {{padding: .25em .8em; text-align: right; white-space: nowrap; background: none;
  border-bottom: 1px solid var(--grid); color: var(--text)}}
.octile-picture th {{font-weight: 600}}
.octile-picture .words {{text-align: left !important}}
</style>"""


def figure(width: float, height: float):
    """Returns an empty figure of matplotlib, in inches, which no window shows."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        return Figure(figsize=(width, height))


def axes_in(figure, place: tuple[float, float, float, float], grid: str = "both", **options):
    """Adds axes at (left, bottom, width, height), shares of the figure, and returns them. grid: "x", "y", "both" or
    ""."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        axes = figure.add_axes(place, **options)
    plain_axes(axes, LIGHT, grid)
    return axes


def plain_axes(axes, colours: dict[str, str], grid_axis: str) -> None:
    axes.set_axisbelow(True)
    axes.set_facecolor("none")
    if grid_axis:
        axes.grid(axis=grid_axis, color=colours["grid"], linewidth=0.8)
    axes.tick_params(colors=colours["quiet"], labelsize=9)


def title(axes, text: str) -> None:
    """Writes the title of axes, which begins at their left edge."""
    axes.set_title(text, fontsize=9.5, loc="left", color=LIGHT["text"])


def beside(axes, x: float, y: float, text: str, size: float = 8.5) -> None:
    """Writes text to the right of a point."""
    axes.annotate(
        text, (x, y), (5, 0), textcoords="offset points", fontsize=size, va="center_baseline", color=LIGHT["text"]
    )


def key(figure, names: list[tuple[str, str]], y: float, left: float = 0.06, size: float = 9.5) -> None:
    """Writes names of lines in their colours, one beside the other: pairs of a name and of a colour's name."""
    from matplotlib.textpath import TextPath

    points = 72 * figure.get_figwidth()
    for name, colour in names:
        figure.text(left, y, name, fontsize=size, color=LIGHT[colour])
        left += (TextPath((0, 0), name, size=size).get_extents().width + 2 * size) / points


def svg_of(figure, creator: str) -> str:
    """Returns the picture as a file for light and dark pages. The same picture gives the same text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    figure.patch.set_alpha(0.0)
    with matplotlib.rc_context(SETTINGS), io.BytesIO() as file:
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": creator})
        return adapt(file.getvalue().decode())


def adapt(text: str) -> str:
    """Returns matplotlib's file with colours of the reader's scheme, digits that are seen, and few lines."""
    text = re.sub(r"""["']DejaVu Sans["']""", FONTS, text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"(?<=base64,)[^\"]*", lambda image: "".join(image[0].split()), text)
    for colour, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{colour})")
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _hundredths, tag[0]), text)
    text = text.replace("<defs>", _file_style(text) + "<defs>", 1)
    text = " ".join(text.split())
    return re.sub(r" ?(?=<g id=\"(?:axes|matplotlib\.axis)_\d+\">)", "\n", text) + "\n"


def _hundredths(number: re.Match) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def page_of(figure=None, below: str = "") -> str:
    """Returns the picture, and HTML below it, for a notebook's output."""
    svg = ""
    if figure is not None:
        svg = svg_of(figure, "octile.notebooks")
        svg = svg[svg.index("<svg") :].replace(_file_style(svg), "", 1)
    return f'{_PAGE_STYLE}<div class="octile-picture">{svg}{below}</div>'


def show(figure=None, below: str = ""):
    """Returns the picture, HTML below it, or both, for a notebook's cell to show."""
    from IPython.display import HTML

    return HTML(page_of(figure, below))


def table(headings: list[str], rows: list[list[object]], words: int = 1) -> str:
    """Returns a table in HTML, whose first columns have words, and the others numbers."""
    from html import escape

    def cells(row: list[object], tag: str) -> str:
        kinds = [' class="words"' if i < words else "" for i in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(str(cell))}</{tag}>" for kind, cell in zip(kinds, row))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(headings, 'th')}</tr></thead><tbody>{body}</tbody></table>"
