#!/usr/bin/env python3
"""The names of the walk-throughs exist: the files, functions and tests of CONTRIBUTING.md's "Adding ..." sections, the
files of ARCHITECTURE.md's "To add X, touch Y", and every public name of octile.torch in docs/torch_reference.md.

In a walk-through each span in backticks is one of these:
- a path: it exists. In <name>, any name may stand, so its folder has to hold files with that ending;
- a test, Suite.Test: one of the files that its row names has it; of a paragraph, one that the section names;
- a word: one of those files has it;
- anything else, such as a command or an expression: it is not looked up.
A span in the table of ARCHITECTURE.md is a path if it has a slash. There {a,b} stands for both, and a name without an
extension for its .h and .cc.
"""
import ast
import itertools
import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ENDINGS = ("", ".h", ".cc", ".cuh", ".cu", ".py")
WORD = re.compile(r"[A-Za-z_]\w*")
TEST = re.compile(r"([A-Z]\w+)\.([A-Z]\w+)")
LANGUAGE = {"switch"}


def spans_of(text):
    return re.findall(r"`([^`]+)`", text)


def sections_of(document, pattern):
    """Returns the bodies of the second-level sections whose title matches."""
    parts = re.split(r"^## (.*)\n", document, flags=re.M)
    return [body for title, body in zip(parts[1::2], parts[2::2]) if re.match(pattern, title)]


def units_of(section):
    """Returns the rows of a section's tables and its paragraphs."""
    lines = section.splitlines()
    rows = [line for line in lines if line.startswith("| ") and "`" in line]
    text = "\n".join(line for line in lines if not line.startswith("|"))
    return rows + [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]


def expanded(path):
    """Returns what a path with {a,b} stands for."""
    pieces = [piece.split(",") if i % 2 else [piece] for i, piece in enumerate(re.split(r"\{([^{}]*)\}", path))]
    return ["".join(one) for one in itertools.product(*pieces)]


def is_path(span):
    return "/" in span and re.fullmatch(r"[\w./<>{},-]+", span) is not None


def exists(path):
    pattern = re.sub(r"<[^>]*>", "*", path)
    return any(next(SOURCE.glob(pattern.rstrip("/") + ending), None) for ending in ENDINGS)


def paths_in(text):
    return [path for span in spans_of(text) if is_path(span) for path in expanded(span)]


def objections_to(unit, section=""):
    """Returns what a row or a paragraph of a walk-through names and is not there."""
    spans, paths = spans_of(unit), paths_in(unit)
    missing = [path for path in paths if not exists(path)]
    files = {SOURCE / path for path in [*paths, *paths_in("" if unit.startswith("|") else section)]}
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    for span in spans:
        test = TEST.fullmatch(span)
        if test:
            found = any(re.search(rf"\bTEST(_F|_P)?\({test[1]}, {test[2]}\)", text) for text in texts)
        elif WORD.fullmatch(span) and span not in LANGUAGE:
            found = any(re.search(rf"\b{span}\b", text) for text in texts)
        elif re.fullmatch(r"\w+\.(cu|cuh|cc|h|py)", span):
            found = next(SOURCE.glob(f"templates/*/{span}"), None) is not None
        else:
            continue
        if not found:
            missing.append(f"{span} (in {', '.join(paths) or 'no file'})")
    return missing


def main():
    contributing = (SOURCE / "CONTRIBUTING.md").read_text()
    failed = looked_up = 0

    def report(where, missing):
        nonlocal failed
        for name in missing:
            print(f"FAILED {where}: there is no {name}")
            failed += 1

    sections = sections_of(contributing, "Adding ")
    for section, unit in ((section, unit) for section in sections for unit in units_of(section)):
        looked_up += len(spans_of(unit))
        report("CONTRIBUTING.md", objections_to(unit, section))
    for section in sections_of((SOURCE / "ARCHITECTURE.md").read_text(), "To add X, touch Y"):
        for path in paths_in(section):
            looked_up += 1
            report("ARCHITECTURE.md", [] if exists(path) else [path])
    reference = (SOURCE / "docs/torch_reference.md").read_text()
    module = ast.parse((SOURCE / "runtime/python/octile/torch/__init__.py").read_text())
    public = next(ast.literal_eval(node.value) for node in module.body
                  if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    looked_up += len(public)
    unnamed = [name for name in public if not re.search(rf"`[^`]*\b{name}\b", reference)]
    report("docs/torch_reference.md", unnamed)

    # This script sees what is missing.
    example = "| `generator/gemm/emit.cc` | `scale_of` | `GemmKinds.CompileClean` |"
    nothing = "| `generator/gemm/<name>.zz`, `generator/gemm/emit.cc` | `no_such_function` | |"
    if len(objections_to(example)) != 1 or len(objections_to(nothing)) != 2 or len(sections) < 2 or looked_up < 200:
        print(f"FAILED: this script looks up too little: {looked_up} names in {len(sections)} walk-throughs")
        failed += 1
    print(f"{looked_up} names looked up, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
