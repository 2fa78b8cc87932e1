#!/usr/bin/env python3
"""Compiles a file of Octile for a project that builds Octile itself, or copies what the tested build made of it.

    reuse_objects.py BUILD OTHER COMPILER WORD...

OTHER is the folder of Octile's part of the project's build. An object of the tested build serves if it was compiled by
the same words, but for the names of the two folders and of the object and for words that change no object. A source
that a build wrote has to have the same text, too.
"""

import json
import os
import pathlib
import shlex
import shutil
import sys


def split(words):
    """Returns the words of a compile without those of its outputs, its source and its object; None if it is none."""
    kept, source, made = [], None, None
    rest = iter(words)
    for word in rest:
        if word == "-o":
            made = next(rest)
        elif word in ("-MT", "-MF"):
            next(rest)
        elif word not in ("-MD", "-fpch-preprocess"):  # the second is for ccache
            source = word if kept[-1:] == ["-c"] else source
            kept.append(word)
    return (kept, source, made) if source and made else None


def object_of(words, build, other):
    """Returns the object of the tested build that serves; None if none does."""
    asked = split(words)
    if asked is None:
        return None
    kept = [word.replace(other, build) for word in asked[0]]
    source = asked[1].replace(other, build)
    if source != asked[1] and (
        not os.path.exists(source)
        or pathlib.Path(source).read_text() != pathlib.Path(asked[1]).read_text().replace(other, build)
    ):
        return None
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        if entry["file"] == source and (known := split(shlex.split(entry["command"]))) and known[0] == kept:
            file = pathlib.Path(entry["directory"], known[2])
            return file if file.exists() else None
    return None


def main():
    build, other, *words = sys.argv[1:]
    found = object_of(words, build, other)
    if found is None:
        os.execvp(words[0], words)
    shutil.copyfile(found, split(words)[2])


if __name__ == "__main__":
    main()
