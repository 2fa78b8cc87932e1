#!/usr/bin/env python3
"""Says which test files a build may compile as one (OCTILE_UNITY).

    compile_together.py FILE...

Prints "<group> <file>" for each file that is compiled with others. Test files define constants, helpers and fixtures in
anonymous namespaces, which meet if the files are compiled as one. So no file of a group mentions a name that another one
defines: neither does a name get defined twice, nor does a call find another file's function. A file that defines a macro
is compiled alone.
"""

import pathlib
import re
import sys

MOST = 16  # files of a group: larger ones would keep one core busy at the end of a build
MARGIN = re.compile(r"^(?!TEST|TYPED_TEST|INSTANTIATE|namespace\b|template\b|using (?!\w+ =))[A-Za-z_].*", re.MULTILINE)
# The names that a line at the margin defines: a type, an alias or a matcher, else a function or a variable, whichever
# comes first.
DEFINED = re.compile(
    r"(?:struct|class|enum class|enum|union|using) (\w+)|MATCHER\w*\((\w+)|"
    r"[\w:<>,&*() ]*?[ &*>](\w+)(?:\[\w*\])*(?:\(|\{| =|;)"
)
COMMENT_OR_TEXT = re.compile(r'//.*|"(?:\\.|[^"\\\n])*"')


def defined_in(text):
    """Returns the names that the lines at the margin define."""
    found = (DEFINED.match(line) for line in MARGIN.findall(text))
    return {next(filter(None, match.groups())) for match in found if match}


class Group:
    def __init__(self):
        self.files, self.defined, self.mentioned = [], set(), set()

    def may_take(self, defined, mentioned):
        return len(self.files) < MOST and self.defined.isdisjoint(mentioned) and self.mentioned.isdisjoint(defined)

    def take(self, file, defined, mentioned):
        self.files.append(file)
        self.defined |= defined
        self.mentioned |= mentioned


def groups_of(texts):
    """Returns lists of files, given the text of each file: each file is in the first group that may take it."""
    groups = []
    for file, text in texts.items():
        if re.search(r"^#define", text, re.MULTILINE):
            continue
        defined, mentioned = defined_in(text), set(re.findall(r"\w+", COMMENT_OR_TEXT.sub("", text)))
        group = next((g for g in groups if g.may_take(defined, mentioned)), None)
        if group is None:
            groups.append(group := Group())
        group.take(file, defined, mentioned)
    return [group.files for group in groups if len(group.files) > 1]


def main():
    texts = {name: pathlib.Path(name).read_text() for name in sys.argv[1:]}
    for number, files in enumerate(groups_of(texts)):
        for file in files:
            print(number, file)


if __name__ == "__main__":
    main()
