#!/usr/bin/env python3
"""Tests of reuse_objects.py."""

import json
import pathlib
import tempfile
import unittest

from reuse_objects import object_of


class Reuse(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build, self.other = (pathlib.Path(folder.name, name) for name in ("build", "other"))
        entries = []
        for source in ("/src/a.cc", f"{self.build}/unity.cc", "/src/missing.cc"):
            made = f"{pathlib.Path(source).stem}.o"
            command = f'c++ -DNAME=\\"x\\" -I{self.build}/include -O3 -fpch-preprocess -o {made} -c {source}'
            entries.append({"directory": str(self.build), "file": source, "command": command})
        for root in (self.build, self.other):
            root.mkdir()
            (root / "unity.cc").write_text(f'#include "{root}/a.cc"\n')
        for made in ("a.o", "unity.o"):
            (self.build / made).touch()
        (self.build / "compile_commands.json").write_text(json.dumps(entries))

    def found(self, source, option="-O3"):
        words = [
            "c++",
            '-DNAME="x"',
            f"-I{self.other}/include",
            option,
            "-MD",
            "-MT",
            "b.o",
            "-MF",
            "b.o.d",
            "-o",
            "b.o",
            "-c",
            source,
        ]
        made = object_of(words, str(self.build), str(self.other))
        return made and made.name

    def test_equal_words_and_texts_are_served(self):
        self.assertEqual(self.found("/src/a.cc"), "a.o")
        self.assertEqual(self.found(f"{self.other}/unity.cc"), "unity.o")

    def test_others_are_compiled(self):
        self.assertIsNone(self.found("/src/a.cc", "-O2"))
        self.assertIsNone(self.found("/src/b.cc"))
        self.assertIsNone(self.found("/src/missing.cc"))
        (self.other / "unity.cc").write_text('#include "/src/a.cc"\n')
        self.assertIsNone(self.found(f"{self.other}/unity.cc"))


if __name__ == "__main__":
    unittest.main()
