"""Writes the library that draws a page's charts: Vega-Lite, Vega and Vega-Embed in one file of JavaScript.

    bundle.py OUT

PyPI's vl-convert-python (tools/requirements/page.txt) carries them, so no other registry is needed. tools/setup.sh
runs this; the build embeds the file. It refuses to if notices.txt, which pages show, is of other packages or versions.
"""

import importlib.metadata
import pathlib
import re
import sys

import vl_convert

# An end of the element that it stands in, or a comment of HTML, would change what a browser reads.
FORBIDDEN = ("</script", "<!--")


NOTICES = pathlib.Path(__file__).with_name("notices.txt")


def packages_of_the_wheel():
    """Returns "name version" of each JavaScript package that vl-convert-python carries. It bundles the latest of its
    versions of Vega-Lite."""
    library = next(pathlib.Path(vl_convert.__file__).parent.glob("vl_convert*.so")).read_bytes()
    named = re.findall(rb"/npm/((?:@[a-z0-9-]+/)?[a-z0-9.-]+)@(\d+\.\d+\.\d+)/\+esm", library)
    versions = {}
    for name, version in {(name.decode(), tuple(map(int, version.split(b".")))) for name, version in named}:
        versions[name] = max(version, versions.get(name, version))
    return {f"{name} {'.'.join(map(str, version))}" for name, version in versions.items()}


def check_notices():
    """Ends the program if notices.txt is of other packages, or of other versions, than the wheel's."""
    text = " ".join(NOTICES.read_text().split())
    wheel = f"vl-convert-python {importlib.metadata.version('vl-convert-python')}"
    named = set(re.findall(r"\b[a-z0-9.@/-]+ \d+\.\d+\.\d+(?:\.post\d+)?(?=[ ,:])", text))
    carried = packages_of_the_wheel() | {wheel}
    if len(carried) < 50 or named != carried:
        only = [", ".join(sorted(some)) or "none" for some in (carried - named, named - carried)]
        sys.exit(f"bundle.py: tools/page/notices.txt lacks {only[0]}, and names what the bundle has not: {only[1]}")


def main(out):
    check_notices()
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
