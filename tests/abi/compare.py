#!/usr/bin/env python3
"""Says if the public headers keep the promise of the C API (rule 9 of octile.h) to programs of an older release.

    compare.py --old tests/abi/0.1.0/include --new runtime/include --first-sizes runtime/api/first_sizes.h --cc cc \\
        --work FOLDER [--earlier tests/abi/0.0.9/include ...]

Writes what the old headers say into a C file of static assertions, and compiles it with the new headers: place, size and
type of every field, every enumerator and macro, the type of every function. Structs may get fields behind their last
one. Functions, types, enumerators and macros may be added. The least struct_size that a call accepts is the size of its
struct in the first release that has it, which is the old one if no earlier one has it. The exit status is 0 if all of it
holds. Otherwise a sentence or the compiler names what a program compiled with the old headers would find changed.

abidiff 2.2, which Debian 12 has, does not serve: with the suppression that allows a field at the end of a struct, it
also passes a field whose type changes from int32_t to float.
"""

import argparse
import pathlib
import re
import subprocess
import sys


class Headers:
    """The declarations of the public headers in a folder."""

    def __init__(self, folder):
        paths = sorted(pathlib.Path(folder, "octile").glob("*.h"))
        if not paths:
            sys.exit(f"no headers in {folder}/octile")
        self.includes = "".join(f'#include "octile/{path.name}"\n' for path in paths)
        text = "".join(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S) for path in paths)
        enums = re.findall(r"typedef enum (octile_\w+) \{(.*?)\}\s*\1;", text, flags=re.S)
        structs = re.findall(r"typedef struct (octile_\w+) \{(.*?)\}\s*\1;", text, flags=re.S)
        macros = re.findall(r"^#define (OCTILE_\w+) +(.*\d.*)$", text, flags=re.M)
        #: (type, name, value as written)
        self.enumerators = [(kind, *one) for kind, body in enums for one in re.findall(r"(\w+) = (\w+)", body)]
        #: (struct, field, type)
        self.fields = [(name, *one) for name, body in structs for one in self._fields(body)]
        self.macros = {name: value.strip() for name, value in macros if not name.startswith("OCTILE_VERSION_")}
        #: (name, type)
        self.functions = [
            (name, f"{' '.join(result.split())} ({' '.join(arguments.split())})")
            for result, name, arguments in re.findall(
                r"OCTILE_API\s([^;(]*?)\b(octile_\w+)\s*\(((?:[^()]|\([^()]*\))*)\);", text
            )
        ]
        declared = len(re.findall(r"^OCTILE_API\b", text, flags=re.M))
        listed = sum(len([one for one in body.split(",") if one.strip()]) for _, body in enums)
        if len(self.functions) != declared or len(self.enumerators) != listed:
            sys.exit(f"{folder}: a function or an enumerator is written in a form that compare.py does not read")

    @staticmethod
    def _fields(body):
        for declaration in filter(None, map(str.strip, body.split(";"))):
            first, *others = declaration.split(",")
            kind, name, array = re.fullmatch(r"(.*?)(\w+)((?:\[\w+\])*)", " ".join(first.split())).groups()
            yield name, kind.strip() + array
            for other in others:  # of types without a star: each declarator has its own
                yield other.strip(), kind.strip()


def checks_of(old, places):
    """Returns the C file. places: offset and size of every field, and the size of its struct."""
    lines = ["#include <stddef.h>\n" + old.includes]

    def check(holds, sentence):
        lines.append(f'_Static_assert({holds},\n               "{sentence}");')

    ends = {}
    for (struct, field, kind), (offset, size, whole) in zip(old.fields, places, strict=True):
        if not 0 <= offset - ends.get(struct, (0, 0))[0] < 8:
            sys.exit(f"a field before {struct}.{field} is written in a form that compare.py does not read")
        ends[struct] = offset + size, whole
        place = f"offsetof({struct}, {field}) == {offset} && sizeof((({struct}*)0)->{field}) == {size}"
        check(place, f"{struct}.{field} was at byte {offset} with {size} bytes")
        same = f"__builtin_types_compatible_p(__typeof__((({struct}*)0)->{field}), {kind})"
        check(same, f"{struct}.{field} was of type {kind}")
    for struct, (end, whole) in ends.items():
        if end != whole:
            sys.exit(f"{struct} ends in {whole - end} bytes without a field, or with one that compare.py does not read")
        if (struct, "struct_size") not in {(name, field) for name, field, _ in old.fields}:
            check(f"sizeof({struct}) == {whole}", f"{struct} has no struct_size and had {whole} bytes")
    for kind, name, value in old.enumerators:
        check(f"{name} == {value} && sizeof({kind}) == 4", f"{name} of {kind} was {value}")
    for name, value in old.macros.items():
        check(f"{name} == ({value})", f"{name} was {value}")
    for name, kind in old.functions:
        check(f"__builtin_types_compatible_p(__typeof__({name}), {kind})", f"{name} was {kind}")
    return "\n".join(lines) + "\n"


def sizes_with_struct_size(headers, places):
    """Returns the bytes of each struct that begins with its size."""
    rows = zip(headers.fields, places, strict=True)
    return {struct: whole for (struct, field, _), (_, _, whole) in rows if field == "struct_size"}


def wrong_first_sizes(text, sizes):
    """Returns a sentence for each struct whose row of first_sizes.h has other bytes than its first release."""
    rows = {name: int(size) for name, size in re.findall(r"^OCTILE_FIRST_SIZE\((\w+), (\d+), \w+\);", text, flags=re.M)}
    return [
        f"{struct} had {size} bytes in its first release, and its row of first_sizes.h says {rows.get(struct, 'nothing')}"
        for struct, size in sizes.items()
        if rows.get(struct) != size
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("old", "new", "cc", "work", "first-sizes"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--earlier", nargs="*", default=[])
    given = parser.parse_args()
    work = pathlib.Path(given.work)
    work.mkdir(parents=True, exist_ok=True)

    def compiled(name, text, include, *options):
        source, out = work / f"{name}.c", work / name
        source.write_text(text)
        command = [given.cc, "-std=gnu11", f"-I{include}", *options, str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{include} breaks the promise to programs compiled with {given.old}:\n{done.stderr}")
        return out

    old = Headers(given.old)
    program = f"#include <stddef.h>\n#include <stdio.h>\n{old.includes}int main(void) {{\n"
    for struct, field, _ in old.fields:
        sizes = f"offsetof({struct}, {field}), sizeof((({struct}*)0)->{field}), sizeof({struct})"
        program += f'  printf("%zu %zu %zu\\n", {sizes});\n'
    places = compiled("places", program + "}\n", given.old)
    said = subprocess.run([places], capture_output=True, text=True, check=True).stdout
    places = [tuple(map(int, line.split())) for line in said.splitlines()]
    compiled("checks", checks_of(old, places), given.new, "-c")
    before = {struct for folder in given.earlier for struct, _, _ in Headers(folder).fields}
    sizes = {name: size for name, size in sizes_with_struct_size(old, places).items() if name not in before}
    if wrong := wrong_first_sizes(pathlib.Path(given.first_sizes).read_text(), sizes):
        sys.exit(f"{given.first_sizes} breaks the promise to programs compiled with {given.old}:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
