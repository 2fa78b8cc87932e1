#!/usr/bin/env python3
"""Finds sentences that are hard to read, in comments, documents, and strings of the code, and exits with 1 if there are
any. `tools/lint.sh` runs it.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".cc", ".h", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".md", ".man", ".in", ".ipynb"}
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


def text_of(path):
    """Returns the text of a file. A line of a notebook's cell is a line of the file, as Jupyter writes it; all others
    are empty."""
    text = path.read_text(errors="replace")
    if path.suffix != ".ipynb":
        return text
    lines = (re.fullmatch(r'\s*("(?:[^"\\]|\\.)*"),?', line) for line in text.splitlines())
    return "\n".join(json.loads(line[1]).rstrip("\n") if line else "" for line in lines)


def files():
    """Returns the files of the source tree with text for people, by their names."""
    tops = [top for top in ROOT.iterdir() if top.name not in ("build", ".git")]
    paths = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])]
    named = {str(path.relative_to(ROOT)): path for path in paths if path.suffix in SUFFIXES or path.name in NAMES}
    return {name: path for name, path in sorted(named.items()) if path.is_file() and not LEFT_OUT.match(name)}


def main():
    lines = [
        f"{name}:{line}: {pattern}: {words}"
        for name, path in files().items()
        for line, pattern, words in found_in(text_of(path), path.suffix == ".md")
    ]
    print("\n".join([f"prose: {len(lines)} places to rewrite", *lines]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
