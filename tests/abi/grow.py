#!/usr/bin/env python3
"""Writes the public headers of a later version, in which every struct with a struct_size has one more field.

    grow.py --headers runtime/include --out FOLDER
"""

import argparse
import pathlib
import re


def grown(text):
    """Returns the text with a field at the end of each struct that has a struct_size."""
    pattern = r"(typedef struct (octile_\w+) \{\n  size_t struct_size;.*?)(\n\} \2;)"
    return re.sub(pattern, r"\1\n  int64_t grown_for_test;\3", text, flags=re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headers", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    given = parser.parse_args()
    for header in given.headers.rglob("*.h"):
        out = given.out / header.relative_to(given.headers)
        out.parent.mkdir(parents=True, exist_ok=True)
        text = grown(header.read_text()).replace("#include <stddef.h>", "#include <stddef.h>\n#define OCTILE_TEST_GROWN 1", 1)
        if not out.exists() or out.read_text() != text:
            out.write_text(text)


if __name__ == "__main__":
    main()
