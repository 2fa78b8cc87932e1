#!/usr/bin/env python3
"""Tests of tools/prose.py: which sentences it finds, where, and in which files."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from prose import PATTERNS, ROOT, files, found_in, text_of

PROGRAM = ROOT / "tools" / "prose.py"
BEGINS, NEGATED, AMOUNT, CLAUSE, VERBLESS = PATTERNS


def kinds(text, markdown=False):
    return [kind for _, kind, _ in found_in(text, markdown)]


class Found(unittest.TestCase):
    def test_each_pattern(self):
        for text, kind in {
            "// What a call leaves.": BEGINS,
            '"""Of one expert\'s weight."""': BEGINS,
            "It ends. Of two lines the last counts.": BEGINS,
            "That of another may have changed.": BEGINS,
            "a line that is no record": NEGATED,
            "The sizes are no multiples of 16.": NEGATED,
            "the text is no JSON": NEGATED,
            "It takes so many bytes.": AMOUNT,
            "The kernel needs so much memory.": AMOUNT,
            "a fingerprint of what the copies were made from": CLAUSE,
            "This is what a layer keeps.": CLAUSE,
            "It computes whatever the mode.": CLAUSE,
            "`octile doctor` says what is missing.": CLAUSE,
            "0 if it is known; else 1": VERBLESS,
            "the first, else not": VERBLESS,
            "Loads A. Loads B, likewise.": VERBLESS,
            "Empty: no limit.\n": VERBLESS,
            "It has groups. Not with experts.\n": VERBLESS,
        }.items():
            self.assertEqual(kinds(text), [kind], text)

    def test_a_line_may_end_within_a_pattern(self):
        for text in (
            "// Returns a digest of\n// what was read.",
            "# Returns a digest of\n#   what was read.",
            "/* A digest of\n * what was read. */",
            '"a digest of "\n    "what was read"',
            "f'a digest of '\n    f'what was read'",
        ):
            self.assertEqual(found_in(text)[0][:2], (1, CLAUSE), text)

    def test_the_line_is_that_of_the_first_word(self):
        self.assertEqual(
            found_in("One line.\n\nWhat it has\nis this.\n"), [(3, BEGINS, "What it has is this.")]
        )

    def test_notebooks(self):
        cell = {"cell_type": "markdown", "source": ["A \"digest\"\n", "\n", "of what was read"]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.ipynb")
            path.write_text(json.dumps({"cells": [cell]}, indent=1))
            lines = path.read_text().splitlines()
            text = text_of(path)
            self.assertEqual(found_in(text)[0][:2], (lines.index('    "of what was read"') + 1, CLAUSE))

    def test_others_stay(self):
        for text in (
            "There is no GPU. It is no longer so, and there are no files.",
            "The second is no faster than the first.",
            "so many of the candidates, so much more than before",
            "struct Of { int what; };  int f(const Of row) { return error.what(); }",
            "for what, name in pairs:",
            "if (a) return; else return b;\n#if A\nx;\n#else\ny;\n#endif"[19:],
            "if (a) { b(); } else if (c) { d(); }",
            "The copies of the weight are not made again. Nothing else is kept.",
        ):
            self.assertEqual(kinds(text), [], text)

    def test_blocks_of_code_in_documents_stay(self):
        text = "Text.\n\n```c\n// What a call leaves.\n```\n\n    # What a call leaves\n\nWhat a call leaves.\n"
        self.assertEqual(found_in(text, True), [(9, BEGINS, "What a call leaves.")])


class Files(unittest.TestCase):
    def test_no_file_has_a_place(self):
        done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "prose: 0 places to rewrite\n", ""))

    def test_texts_of_every_kind_are_read(self):
        found = files().keys()
        for name in ("README.md", "runtime/include/octile/octile.h", "templates/gemm/kernel.cu", "tools/prose.py"):
            self.assertEqual(name in found, name != "tools/prose.py", name)


if __name__ == "__main__":
    unittest.main()
