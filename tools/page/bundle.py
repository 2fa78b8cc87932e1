"""Writes the library that draws a page's charts: Vega-Lite, Vega and Vega-Embed in one file of JavaScript.

    bundle.py OUT

PyPI's vl-convert-python (tools/requirements/page.txt) carries them, so no other registry is needed. tools/setup.sh
runs this; the build embeds the file.
"""

import pathlib
import sys

import vl_convert

# An end of the element that it stands in, or a comment of HTML, would change what a browser reads.
FORBIDDEN = ("</script", "<!--")


def main(out):
    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    for forbidden in FORBIDDEN:
        if forbidden in text.lower():
            sys.exit(f"bundle.py: the library contains {forbidden}, which a page cannot embed")
    versions = (
        f"Vega {vl_convert.get_vega_version()}, Vega-Lite {vl_convert.get_vegalite_versions()[-1]}, "
        f"Vega-Embed {vl_convert.get_vega_embed_version()}"
    )
    path = pathlib.Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A build beside this one embeds the whole file or none.
    part = path.with_suffix(".part")
    part.write_text(f"/*! {versions}: BSD-3-Clause; the page has the notices */\n{text}\n")
    part.replace(path)


if __name__ == "__main__":
    main(sys.argv[1])
