#!/usr/bin/env python3
"""Does what the documents say, word for word, on a machine without a GPU.

    newcomer.py --prefix PREFIX --work FOLDER [--build BUILD]

Every command in a code block, in the first column of a table or in the examples of a manual page is run with the command
that is installed in PREFIX, in an empty home folder. A command has to end as documented, and the text below "$ command"
in a document has to be the command's output. A command that this script cannot place fails: a document shows nothing
that is not tried. A command that a sentence names need not be complete; its help has to know its options. For the
build's own commands it is looked up that their targets, presets, programs and tests are there. Texts of problems, the
file of a model and the examples of FORMAT.md are given to the command too (samples.py).

No command has an unquoted ?, * or [: zsh refuses a pattern that matches no file, and other shells put the files in its
place. The commands run in a folder with files that "?x7168x2048" and "?x7168" match.

A sample may differ in these points:
- "..." stands for anything, and white space for any other: long lines are wrapped;
- a number before ms, us or s is a time: it stands for any number of any of them;
- with another NVRTC than 13.0, which the samples are from, every number stands for any other.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import samples

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FORMAT = SOURCE / "FORMAT.md"
DOCUMENTS = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", FORMAT, SOURCE / "SECURITY.md", SOURCE / "BENCHMARKS.md",
             SOURCE / "docs/problems.md", SOURCE / "docs/tuning.md", SOURCE / "docs/inspect.md",
             *sorted([*(SOURCE / "docs").glob("*.1"), *(SOURCE / "docs/man").glob("*.man")])]

# Words of a code block that stand for something of the reader's.
PLACEHOLDERS = {"DIR": "elsewhere", "PREFIX=...": "PREFIX=elsewhere"}
# The command that a fenced sample without "$ command" shows, by the sample's first words.
SAMPLES = {"3. Kernels for": "octile demo"}

GPU = "a machine without a GPU cannot do this, and says so"
# How a command has to end: the first pattern that a command matches decides. None: it is not run, as the reason says.
RULES = [
    (r"^(sudo )?make\b", None, "the build itself; its targets are looked up in the Makefile"),
    (r"^cmake --preset|^ctest ", None, "the build itself; its presets are looked up"),
    (r"(_tests|octile_gpu_suite)\b", None, "a program of the tests; the tests that it is to run are looked up"),
    (r"^tools/|^build/deps/", None, "needs a GPU, or what another command installs; the program is looked up"),
    (r"src=square'", {2}, "the source that the reader of CONTRIBUTING.md is to add"),
    (r"octile (bench|doctor --measure)\b", {1}, GPU),
    (r"octile tune merge\b", {2}, "a machine without a GPU has no records of its own"),
    (r"octile tune (?!.*--explain)", {1}, GPU),
    (r"octile report\b", {2}, "a machine without a GPU has no records of its own"),
    (r"octile cache why\b", {0, 3}, "3: the kernel would be compiled"),
    (r"^(\S+/)?(octile|cmake) |^OCTILE_[A-Z]+=\S+ octile ", {0}, ""),
]


def code_of(document):
    """Returns the code of a document: (where: "block", "row" or "sentence"; text)."""
    text = document.read_text()
    if document.suffix != ".md":
        text = text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")
        return [("block", block) for block in re.findall(r"^\.nf\n(.*?)^\.fi", text, re.S | re.M)]
    code = [("block", block) for block in re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)]
    text = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.S | re.M)
    blocks = re.findall(r"(?:^    .*\n)+", text, re.M)
    code += [("block", re.sub(r"^    ", "", block, flags=re.M)) for block in blocks]
    text = re.sub(r"(?:^    .*\n)+", "", text, flags=re.M)
    rows = re.findall(r"^\| (.*?) \|", text, re.M)
    code += [("row", span) for row in rows for span in re.findall(r"`([^`]+)`", row)]
    text = re.sub(r"^\| .*? \|", "", text, flags=re.M)
    return code + [("sentence", " ".join(span.split())) for span in re.findall(r"`([^`]+)`", text)]


def is_command(line):
    return re.match(r"(octile(?!-)|make|cmake|ctest|sudo|compute-sanitizer|build/\S+|tools/\S+\.(py|sh)|"
                    r"[A-Z]+_[A-Z]+=\S+ (octile|build/release/\S+)) ", line) is not None


def unquoted_pattern(command):
    """Returns the first unquoted ?, * or [ of a command, which a shell takes for a pattern of files; None if none is."""
    quote = None
    characters = iter(command)
    for character in characters:
        if quote:
            if character == "\\" and quote == '"':
                next(characters, None)
            quote = None if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "\\$":  # $? is not a pattern
            next(characters, None)
        elif character in "?*[":
            return character
    return None


def commands_of(document):
    """Returns what a document tells its reader to run: (where, command, the output that it shows or None)."""
    found = []
    for where, code in code_of(document):
        lines = code.splitlines()
        sample = next((command for start, command in SAMPLES.items() if code.startswith(start)), None)
        if sample:
            found.append((where, sample, lines))
        elif where == "block" and lines and lines[0].startswith("$ "):
            found.append((where, lines[0][2:], lines[1:]))
        else:
            for line in lines:
                command = re.sub(r"\s+# .*", "", line).strip()
                if is_command(command):
                    found.append((where, command, None))
    return found


def pattern_of(line, exact):
    """Returns the pattern of one line of a sample."""
    pieces = []
    for piece in re.split(r"(\.\.\.|\s+)", line.strip()):
        if piece == "...":
            pieces.append(r".*?")
        elif not piece or piece.isspace():
            pieces.append(r"\s+" if piece else "")
        else:
            pieces.append(re.escape(piece) if exact else re.sub(r"\d+(\\\.\d+)?", r"[\\d.]+", re.escape(piece)))
    pattern = "".join(pieces)
    return re.sub(r"(?:\[\\d\.\]\+|\d+(?:\\\.\d+)?)(\\s\+)(?:ms|us|s)\b", r"[\\d.]+\1(?:ms|us|s)", pattern)


def first_difference(sample, output, exact, home):
    """Returns the first line of a sample that is not in the output, in order; None if all are."""
    at = 0
    for line in sample:
        line = line.replace("/root/.cache", f"{home}/.cache")
        if line.strip() in ("", "..."):
            continue
        match = re.compile(pattern_of(line, exact), re.S).search(output, at)
        if not match:
            return line
        at = match.end()
    return None


class Newcomer:
    def __init__(self, prefix, build, work):
        self.build, self.work, self.home = build, work, work / "home"
        shutil.rmtree(work, ignore_errors=True)
        (work / "here").mkdir(parents=True)
        self.home.mkdir()
        (work / "bin").mkdir()
        # The programs of others that examples call. The other node of an ssh is this one, with a cache of its own.
        for name, text in (("scp", 'test -s "$1"'), ("ssh", f'shift; OCTILE_CACHE_DIR={work}/node exec "$@"')):
            (work / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (work / "bin" / name).chmod(0o755)
        (work / "here/problems.txt").write_text("16x512x7168\n")
        samples.write_checkpoints(work / "here")
        for name in ("1x7168x2048", "1x7168"):  # what an unquoted ?x7168x2048 or ?x7168 would become
            (work / "here" / name).touch()
        kept = {k: v for k, v in os.environ.items() if k in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "TMPDIR")}
        self.environment = kept | {
            "HOME": str(self.home), "PATH": f"{prefix}/bin:{work}/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8",
            "OCTILE_LIBCUDA": "/nonexistent/libcuda.so.1"}
        doctor = self.run("octile doctor --json").stdout
        found = re.search(r'"version": "([\d.]+)"[^}]*\}', doctor[doctor.find('"nvrtc"'):])
        self.exact = bool(found) and found.group(1) == "13.0"

    def run(self, command, **more):
        return subprocess.run(["/bin/sh", "-c", command], cwd=self.work / "here", env=self.environment | more, text=True,
                              capture_output=True, timeout=600, check=False)

    def small_cache(self):
        """Returns the variable of a cache with one kernel, for a command that compiles all of a cache again."""
        more = {"OCTILE_CACHE_DIR": str(self.work / "small")}
        self.run("octile compile --device h200 --quantize 128x7168", **more)
        return more

    def expected_of(self, command):
        for pattern, statuses, reason in RULES:
            if re.search(pattern, command):
                return statuses, reason
        return set(), "no rule of tests/newcomer/newcomer.py says how it should end"

    def look_up(self, command):
        """Returns what a command that is not run names and is not there."""
        words = shlex.split(command)
        if words[0] == "make":
            rules = re.findall(r"^([\w -]+):", (SOURCE / "Makefile").read_text(), re.M)
            missing = {word for word in words[1:] if "=" not in word} - {name for rule in rules for name in rule.split()}
            return f"the Makefile has no target {missing}" if missing else None
        if words[0] in ("cmake", "ctest"):
            presets = json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]
            missing = set(re.findall(r"--preset (\S+)", command)) - {preset["name"] for preset in presets}
            return f"CMakePresets.json has no preset {missing}" if missing else None
        if words[0].startswith("build/deps/"):
            return None if (SOURCE / words[1]).is_file() else f"there is no {words[1]}"
        if words[0].startswith("tools/"):
            return None if os.access(SOURCE / words[0], os.X_OK) else "is not a program"
        return self.look_up_tests(words) if self.build else None

    def look_up_tests(self, words):
        program = next(word for word in words if re.search(r"(_tests|octile_gpu_suite)$", word))
        name = pathlib.Path(program).name
        path = next((folder / name for folder in (self.build / "tests", self.build) if (folder / name).exists()), name)
        names = [word for word in words if word.startswith("--gtest_filter=")]
        listed = self.run(shlex.join([str(path), "--gtest_list_tests", *names]))
        if listed.returncode != 0:
            return f"ended with status {listed.returncode}\n{listed.stderr}"
        source = SOURCE / "tests/gpu/main.cc"  # the one program that has options of its own
        unknown = [word for word in words[words.index(program):] if word.startswith("--")
                   and not word.startswith("--gtest_") and f'"{word}"' not in source.read_text()]
        if unknown:
            return f"has no option {unknown[0]}"
        return None if re.search(r"^  \w", listed.stdout, re.M) else "runs no test"

    def try_sentence(self, command):
        """Returns which option of a command, named in a sentence, the help of that command does not know."""
        if not command.startswith("octile "):
            return self.try_command(command, None)
        words = command.split()
        verbs = [w for w in words[1:3] if re.fullmatch(r"[a-z-]+", w) and w not in ("-",)]
        while verbs:
            help_text = self.run(f"octile {' '.join(verbs)} --help")
            if help_text.returncode == 0:
                break
            verbs.pop()
        else:
            return None if words[1] in ("help", "--version") or words[1].startswith("<") else "no such verb"
        unknown = [w for w in words if w.startswith("--") and not re.search(rf"(^|[\s,]){w}\b", help_text.stdout)]
        return f"has no option {unknown[0]}" if unknown else None

    def try_command(self, written, sample):
        """Returns what is wrong with a command of a document; None if nothing is."""
        command = written
        for word, meaning in PLACEHOLDERS.items():
            command = re.sub(rf"(?<![\w$\"]){re.escape(word)}(?![\w])", lambda _, m=meaning: m, command)
        if self.build is None and "build/release" in command:
            return None
        command = command.replace("build/release", str(self.build))
        statuses, reason = self.expected_of(command)
        if statuses is None:
            return self.look_up(command)
        ended = self.run(command, **(self.small_cache() if "--recompile" in command else {}))
        if digest := re.search(r"\b[0-9a-f]{64}\b", ended.stdout):
            self.environment["SHA256"] = digest.group(0)
        if ended.returncode not in statuses:
            return f"ended with status {ended.returncode}, expected {sorted(statuses)} {reason}\n{ended.stderr}"
        if reason == GPU and not re.search(r"GPU|driver", ended.stderr):
            return f"does not say that it needs a GPU: {ended.stderr}"
        difference = sample and first_difference(sample, ended.stdout, self.exact, self.home)
        if difference:
            return f"does not print the line\n    {difference}\nbut\n{ended.stdout}"
        return None


def samples_of(document, newcomer):
    """Tries the samples of a document that are not commands; yields (name, what is wrong or None)."""
    blocks = [code for where, code in code_of(document) if where == "block"]
    stated = [block for block in blocks if not block.startswith("$ ")]
    for line in (line for block in stated for line in block.splitlines() if samples.is_problem(line)):
        yield line, samples.try_problem(line, newcomer.run)
    for block in blocks:
        if '"gemms"' in block:
            yield "a model's file", samples.try_model(block, newcomer.run, newcomer.work / "here")
    if document == FORMAT:
        yield from samples.try_format(blocks, newcomer.run, newcomer.home)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, help="the build folder; without it, nothing is installed from it")
    options = parser.parse_args()
    newcomer = Newcomer(options.prefix.resolve(), options.build and options.build.resolve(), options.work.resolve())
    tried, failed = {}, 0

    def report(document, name, wrong):
        print(f"{'FAILED' if wrong else 'ok':6} {document.relative_to(SOURCE)}: {name}", flush=True)
        if wrong:
            print(f"       {wrong}")
        return 1 if wrong else 0

    for document in DOCUMENTS:
        for name, wrong in samples_of(document, newcomer):
            tried[name] = wrong
            failed += report(document, name, wrong)
        for where, command, sample in commands_of(document):
            if command in tried and sample is None:
                continue
            pattern = unquoted_pattern(command)
            tried[command] = (f"has an unquoted {pattern}, which a shell takes for a pattern of files" if pattern
                              else newcomer.try_sentence(command) if where == "sentence"
                              else newcomer.try_command(command, sample))
            failed += report(document, command, tried[command])
    print(f"{len(tried)} commands and samples, {failed} failed")
    return 1 if failed or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
