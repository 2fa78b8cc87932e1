#!/usr/bin/env python3
"""Finds sentences that are hard to read, in comments, documents, and strings of the code. `tools/lint.sh` runs it.

tools/prose_allowed.txt has the files with such places and their numbers, which may only fall: rewrite the sentences of
a file that you change, and lower its number. `--places` prints every place, also the allowed ones.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = "tools/prose_allowed.txt"
SUFFIXES = {".cc", ".h", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".md", ".man", ".in"}
NAMES = {"CMakeLists.txt", "Makefile", "run"}
# Copies of other files, the check itself and its test, which have the patterns as data.
LEFT_OUT = re.compile(r"tests/abi/[^/]+/include/|(tools/prose|tests/prose_test)\.py$")
BEFORE = (
    "about|and not|are|as|be|beside|behind|but|by|for|from|holds?|in|is|keeps?|of|on|only|over|says?|than|that|to|was"
    "|were|with|without"
)
# A space of a pattern stands for any gap between two words, also from a line of a comment or string to the next one.
GAP = r"""(?:\s|\n[ \t]*(?://|\#|\*|f?["'])|["'](?=\s*\n))+"""
PATTERNS = {
    "a sentence begins with it": r"(?<![\w.>])(?:Of|What|That of) (?=[a-z0-9`(])(?![a-z]+\))",
    "a negated noun": r"(?<!here\s)\b(?:is|are|was|were) no (?!longer|more|less|other|\w+er than)(?=[A-Za-z])",
    "an amount without its name": r"\bso (?:many|much) (?!of|as|that|more|the)(?=[a-z])",
    "a clause instead of a noun": rf"\b(?:(?:{BEFORE}) what|whatever)\b(?! for|,| else)",
    "a verb is missing": r";\x20else\b(?! if)|, else not\b|\blikewise(?=[.;\"])|: no \w+(?: \w+)?\.(?=\s)"
    r"|(?<=\.\s)Not [^.,;:]{1,30}\.(?=\s)",
}
COMPILED = {name: re.compile(pattern.replace(" ", GAP)) for name, pattern in PATTERNS.items()}


def found_in(text, markdown=False):
    """Returns (line, pattern, words) of each place in a text."""
    if markdown:  # blocks of code stay out
        text = re.sub(r"^(```.*?^```|    ).*?$", lambda code: "\n" * code[0].count("\n"), text, flags=re.M | re.S)
    places = [
        (text.count("\n", 0, match.start()) + 1, name, " ".join(text[match.start() : match.end() + 40].split()))
        for name, pattern in COMPILED.items()
        for match in pattern.finditer(text)
    ]
    return sorted(places)


def complaints(places, allowed):
    """Returns a line for each place of a file that has more than it may have, and one for each that has fewer."""
    lines = []
    for path in sorted(places.keys() | allowed.keys()):
        found, most = places.get(path, []), allowed.get(path, 0)
        if len(found) > most:
            lines += [f"{path}:{line}: {name}: {words}" for line, name, words in found]
        elif len(found) < most:
            lines.append(f"{path}: {len(found)} places are left; lower its number in {ALLOWED}, which is {most}")
    return lines


def files():
    """Returns the files of the source tree with text for people, by their names."""
    tops = [top for top in ROOT.iterdir() if top.name not in ("build", ".git")]
    paths = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])]
    named = {str(path.relative_to(ROOT)): path for path in paths if path.suffix in SUFFIXES or path.name in NAMES}
    return {name: path for name, path in sorted(named.items()) if path.is_file() and not LEFT_OUT.match(name)}


def main():
    places = {name: found_in(path.read_text(errors="replace"), path.suffix == ".md") for name, path in files().items()}
    places = {name: found for name, found in places.items() if found}
    if "--places" in sys.argv:
        print("\n".join(complaints(places, {})))
        return 0
    rows = [row.rsplit(" ", 1) for row in (ROOT / ALLOWED).read_text().splitlines()]
    lines = complaints(places, {path: int(number) for path, number in rows})
    print("\n".join([f"prose: {len(places)} files with places to rewrite", *lines]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
