#!/usr/bin/env python3
"""Rules of the source tree: which files may tell families apart, which may include which, where files of the disk are
touched, where the command prints, and where a kernel's policies meet."""

import functools
import pathlib
import re
import tokenize
import unittest
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Line(NamedTuple):
    file: str  # relative to the source tree
    number: int
    text: str

    def __str__(self):
        return f"{self.file}:{self.number}: {self.text}"

    @property
    def folder(self):
        return self.file.rpartition("/")[0]


def without_comment(line):
    """Returns a line without its comment. Lines within a comment of C begin with " * "."""
    return "" if line.startswith(" * ") else re.split(r"//|/\*", line, maxsplit=1)[0]


@functools.cache
def lines_under(folder, suffixes=(".cc", ".h")):
    """Returns all lines of the files under a folder with one of the suffixes, without comments."""
    files = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return [Line(str(path.relative_to(ROOT)), number, without_comment(text))
            for path in files for number, text in enumerate(path.read_text().split("\n"), 1)]


def lines_of(*folders):
    return [line for folder in folders for line in lines_under(folder)]


def python_numbers(folder):
    """Returns the numbers of the Python files under a folder, each as a line. Texts and comments have none."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        with path.open("rb") as file:
            yield from (Line(str(path.relative_to(ROOT)), token.start[0], token.string)
                        for token in tokenize.tokenize(file.readline) if token.type == tokenize.NUMBER)


# Code that decides by family: it looks into a variant over families.
DISPATCH = re.compile(r"get_if<|holds_alternative<|std::visit\b|std::get<[^>]*(Problem|Config|ConfigOf|Launch)\b")
# Code that touches files of the disk: streams, <filesystem>, and system calls by which a path is opened, examined or
# changed.
FILE_ACCESS = re.compile(
    r"<f?stream>|<filesystem>|std::filesystem|\b[io]?fstream\b|\b(fopen|fdopen|freopen|tmpfile)\b|"
    r"\b(mkstemp|mkostemp|mkdtemp|opendir|fdopendir|readdir|scandir|glob|realpath|readlink)\(|"
    r"(^|[^\w.>:])(::|std::)?(openat|creat|stat|lstat|fstat|fstatat|statx|access|faccessat|rename|renameat|unlink|"
    r"unlinkat|mkdir|mkdirat|rmdir|chmod|fchmod|chown|truncate|link|linkat|symlink|utimensat|mknod|mkfifo)\(|"
    r"std::remove\(|(^|[^\w])::(open|read|write|mmap)\(")
# Code that makes or closes a descriptor.
DESCRIPTORS = re.compile(
    r"\b(socketpair|pipe2?|dup[23]?|accept4?|memfd_create|epoll_create1?|eventfd|timerfd_create|inotify_init1?|"
    r"pidfd_open|fdopendir|closedir|openat)\(|(^|[^\w.>:])::(open|close|socket|creat)\(|F_DUPFD")
# Code that writes to a stream of the process.
PRINTING = re.compile(r"fmt::print|std::(cout|cerr|clog)\b|\b(v?f?printf|f?puts|f?putc|putchar|fwrite|perror)\(")
# Facts that only a compute capability decides: an architecture's number, or the SMs, threads, registers and shared
# memory of one.
ARCHITECTURE = re.compile(
    r"(sm|compute)_\d\d|\b(132|1536|65536|232448|233472)\b|\b(99|100|227|228) \* (1024|kKiB)|2048;|"
    r"sm_(major|minor) *[<>=!]=? *[0-9]|kHopper")
# The largest numbers of E4M3 and E5M2.
LARGEST = re.compile(r"\b(448|57344)(\.0*)?[fF]?\b(?!\.?\d)")
# Functions that ask the locale, which is the host's.
LOCALE = re.compile(
    r"<cctype>|<ctype.h>|(^|[^\w.>])(std::)?(to(upper|lower)|is(alnum|alpha|blank|cntrl|digit|graph|lower|print|punct|"
    r"space|upper|xdigit)|strto(d|f|ld)|sto(d|f|ld)|atof|setlocale)\(")
# A definition at the margin: a constant or type by its name, a function by its name and its parameters.
DEFINITIONS = [re.compile(pattern) for pattern in (
    r"^(?:static |inline )?const(?:expr)? [^=({\[]*?\b(k[A-Z]\w*)\b",
    r"^(?:struct|class|enum class) (\w+)(?: final)?(?: :[^:].*)? \{",
    r"^[A-Za-z_][\w:<>,&* ]*[ &*](\w+\([^)]*)\)")]


# The folders of tools and the files beside them, from the bottom to the top. Each includes those that it depends on, and
# those below these.
TOOLS_DEPEND_ON = {
    "cmake": (),
    "common": (),
    "command_line": ("common",),
    "models": ("command_line",),
    "command": ("models",),  # options that subcommands share
    "verdict": ("models",),
    "peers": ("common",),
    "compile": ("command",),
    "explain": ("command",),
    "inspect": ("command",),
    "cache": ("compile",),
    "page": ("command", "verdict"),
    "report": ("page",),
    "shapes": ("command", "verdict"),
    "tune": ("page", "peers"),
    "bench": ("compile", "tune"),
    "doctor": ("bench", "cache"),
    "demo": ("doctor",),
    "main": ("command",),
}


def definition_of(line):
    return next((found[1] for found in (pattern.search(line) for pattern in DEFINITIONS) if found), "")


class House(unittest.TestCase):
    def expect_none(self, lines):
        self.assertEqual([str(line) for line in lines], [])

    def expect_arrows(self, place, depends_on):
        """Holds the folders and files of a place to those that they depend on and those below these."""
        seen = {}
        for folder, on in depends_on.items():
            self.assertLessEqual(set(on), seen.keys(), folder)  # so no circle can be written down
            seen[folder] = {folder}.union(*(seen[other] for other in on))

        def room(path):
            return path.removeprefix(place + "/").partition("/")[0].partition(".")[0]

        includes = [(line, room(found[1])) for line in lines_under(place)
                    if (found := re.search(rf'#include "({place}/[^"]+)"', line.text))]
        self.expect_none(line for line, other in includes if other not in seen.get(room(line.file), ()))
        self.assertTrue(includes)

    def expect_pattern(self, pattern, matches, others):
        self.assertEqual([text for text in matches if not pattern.search(text)], [])
        self.assertEqual([text for text in others if pattern.search(text)], [])

    def test_only_the_lists_of_families_tell_families_apart(self):
        lists = {"generator/families.h", "generator/families.cc", "runtime/families/families.h",
                 "runtime/families/families.cc", "runtime/prove/families.cc"}
        found = [line for line in lines_of("generator", "runtime", "tools", "cache") if DISPATCH.search(line.text)]
        self.expect_none(line for line in found if line.file not in lists)
        self.assertTrue(found)
        self.expect_pattern(
            DISPATCH,
            ["if (const auto* gemm = std::get_if<GemmProblem>(&problem)) {",
             "std::holds_alternative<QuantizeProblem>(problem)", "return std::visit(f, problem);",
             "std::get<GemmConfig>(config)", "std::get<QuantizeLaunch>(kernel->launch)"],
            ["std::get<0>(pair)", "unique.get()", "std::get<std::string>(value)"])

    def test_only_file_ops_touches_files(self):
        """Files of a root may be another user's work, so each is opened with the same checks, in the one place that
        has these checks and the faults that tests inject. Programs that the library starts, and the code that starts
        them, open only files that the system gives every process: /dev/null, its own descriptors in /proc, and memory."""
        place = "cache/file_ops.cc"
        of_the_process = {"runtime/process/worker_program.cc", "runtime/process/start_program.cc"}
        found = [line for line in lines_of("cache", "runtime") if FILE_ACCESS.search(line.text)]
        self.expect_none(line for line in found if line.file not in {place, *of_the_process})
        self.assertGreater(sum(line.file == place for line in found), 10)
        self.expect_pattern(
            FILE_ACCESS,
            ["#include <fstream>", "#include <filesystem>", "std::ifstream in(path);",
             "std::ofstream out(path, std::ios::trunc);", 'FILE* f = std::fopen(path, "rb");',
             "const int fd = ::open(path.c_str(), O_RDONLY);", "::openat(fd, name, O_RDONLY)",
             "if (stat(path.c_str(), &info) != 0)", "std::rename(a, b);", "::unlink(path);",
             "std::filesystem::exists(path)", "::mkdir(path, 0700)", "::mmap(nullptr, n, 1, 2, fd, 0)"],
            ["auto nvrtc = Nvrtc::open();", "return open(*path);", "root.remove(stem, status)",
             "struct stat status = {};", "ops.unlink_at(fd, name)", "const auto read = file.read();",
             "root_->open(Root::Missing::kFail)", "std::ostringstream text;"])

    def test_only_one_file_makes_descriptors(self):
        """A descriptor below 3 takes what the host prints, and one that a child of fork has keeps its lock or its
        connection. Programs that the library starts fork nothing, and their files are their own."""
        places = {"cache/descriptor.cc", "cache/descriptor.h", "runtime/process/worker_program.cc"}
        lines = lines_of("cache", "runtime")
        made = [(before, line) for before, line in zip(lines, lines[1:])
                if line.file not in places and DESCRIPTORS.search(line.text)]
        self.expect_none(line for before, line in made if "new_descriptor(" not in before.text + line.text
                         and "closedir(dir)" not in line.text and "fdopendir(fd)" not in line.text)
        self.assertGreaterEqual(len(made), 4)
        self.expect_pattern(
            DESCRIPTORS,
            ["::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data())", "const int fd = ::open(path, 0);",
             "::fcntl(fd, F_DUPFD_CLOEXEC, 3)", "::close(fd);", "::pipe2(ends, O_CLOEXEC)",
             "::openat(fd, name, O_RDONLY)", "::dup2(fd, 1)"],
            ["auto nvrtc = Nvrtc::open();", "file.close();", "ops.open_at(fd, name)", "ops_->close(fd)",
             "close_descriptor(fd)"])

    def test_only_the_device_spec_knows_architectures(self):
        """Everything else asks a DeviceSpec, so that another GPU is a row of device_spec.cc."""
        places = {"generator/core/device_spec.cc", "generator/core/device_spec.h"}
        # Counts that no architecture decides, by the text that has them.
        others = ("kMostGroups", "kMost = 65536", "kMostCalls", "kMostHistory", "rows of up to 65536 bytes")
        lines = [line for folder in ("generator", "cache", "runtime", "tools", "templates")
                 for line in lines_under(folder, (".cc", ".h", ".cu", ".cuh"))]
        found = [line for line in lines if ARCHITECTURE.search(line.text)]
        self.expect_none(line for line in found if line.file not in places
                         and not line.file.startswith("templates/lib/")  # the instructions' wrappers
                         and not any(text in line.text for text in others))
        self.assertGreater(sum(line.file in places for line in found), 10)
        self.expect_pattern(
            ARCHITECTURE,
            ['return "sm_90a";', "constexpr int kThreadsPerSm = 2048;", "sms * of_132 / 132;", "int smem = 228 * 1024;",
             "-gencode arch=compute_90a", "if (device.sm_major >= 9) {", "int registers = 65536;"],
            ["gemm m=? n=2048 k=512", "device.sm_count * 2", "sms_in_clusters(2, n)", "1024 * 1024", "alarm_1320(x)"])

    def test_the_largest_fp8_numbers_have_two_places(self):
        """The host asks max_finite() of types.cc, a kernel has types.cuh, and Python asks octile.numpy or torch.finfo."""
        places = {"generator/core/types.cc", "templates/lib/types.cuh"}
        folders = ("generator", "cache", "runtime", "tools", "templates")
        lines = [line._replace(text=re.sub(r'"(\\.|[^"\\])*"', '""', line.text))
                 for folder in folders for line in lines_under(folder, (".cc", ".h", ".cu", ".cuh"))]
        numbers = [number for folder in folders for number in python_numbers(folder)]
        found = [line for line in lines + numbers if LARGEST.search(line.text) and "offsetof(" not in line.text]
        self.expect_none(line for line in found if line.file not in places)
        self.assertEqual([line.file for line in found], sorted(2 * [*places]))
        self.assertGreater(len(numbers), 1000)
        self.expect_pattern(
            LARGEST,
            ["return 448.0F;", "x / 448", "constexpr float kMost = 57344.0f;", "min(x, 448.F)", "{-448, 448}", "448f"],
            ["0x448", "1448", "k448", "448.5F", "4480", "448.25"])

    def test_only_one_file_prints(self):
        """The command prints texts that others wrote. The one place that prints escapes control characters, survives a
        closed stderr and remembers that stdout failed. The library prints nothing; the programs that it starts,
        whose stderr is /dev/null unless a person starts them, print by themselves."""
        found = [line for line in lines_of("generator", "cache", "runtime", "tools") if PRINTING.search(line.text)]
        self.expect_none(line for line in found if not line.file.startswith("tools/cmake/")  # programs of the build
                         and line.file not in {"tools/common/output.cc", "runtime/process/worker_program.cc"})
        self.expect_pattern(
            PRINTING,
            ['fmt::print("{}", x);', "std::cerr << x;", "std::fprintf(stderr, x);", "puts(x);",
             "std::fwrite(x, 1, n, stdout);"],
            ['print_stdout("{}", x);', "std::snprintf(b, n, x)", "print_json(all);"])

    def test_only_one_folder_includes_the_library_of_the_command_line(self):
        found = [line for line in lines_of("tools", "tests") if "<CLI/" in line.text]
        self.expect_none(line for line in found if line.folder != "tools/command_line")
        self.assertTrue(found)

    def test_files_that_join_include_ranges(self):
        """{fmt} 11 moved fmt::join from <fmt/format.h> into <fmt/ranges.h>."""
        lines = lines_of("generator", "cache", "runtime", "tools", "tests")
        includes = {line.file for line in lines if line.text.startswith("#include <fmt/ranges.h>")}
        joins = [line for line in lines if "fmt::join(" in line.text]
        self.expect_none(line for line in joins if line.file not in includes)
        self.assertGreater(len({line.file for line in joins}), 20)

    def test_nothing_asks_the_locale(self):
        """Names of devices, numbers of files and settings mean the same in every locale."""
        self.expect_none(line for line in lines_of("generator", "runtime", "tools", "cache") if LOCALE.search(line.text))
        self.expect_pattern(
            LOCALE,
            ["#include <cctype>", "c = std::tolower(c);", "if (isspace(c))", "return std::stod(text);",
             "strtod(text, nullptr)"],
            ["to_lower(c)", "is_digit(c)", "std::stoi(text)", "text.isalpha()"])

    def test_families_of_the_generator_do_not_know_each_other(self):
        """generator/core knows no family; a family knows the core and itself."""
        self.expect_arrows("generator", {"core": (), "gemm": ("core",), "quantize": ("core",),
                                         "families": ("gemm", "quantize")})

    def test_families_of_the_runtime_do_not_know_each_other(self):
        """In the runtime a family knows its own folders, in the parts of the runtime and in the generator."""
        pattern = re.compile(r'#include "(?:runtime/families|runtime/reference|runtime/prove|generator)/([^/"]+)/')
        for part in ("runtime/families", "runtime/reference", "runtime/prove"):
            includes = [(line, found[1]) for line in lines_under(part) if line.folder != part
                        and (found := pattern.search(line.text))]
            self.expect_none(line for line, other in includes if other not in ("core", pathlib.Path(line.folder).name))
            self.assertTrue(includes)

    def test_folders_of_tools_depend_on_those_below_them(self):
        self.expect_arrows("tools", TOOLS_DEPEND_ON)

    def test_parts_of_the_runtime_are_as_the_architecture_says(self):
        """CMake holds the parts to their arrows, and ARCHITECTURE.md shows them."""
        text = (ROOT / "runtime/CMakeLists.txt").read_text()
        arrows = {part[1]: set(re.findall(r"octile_(?:runtime_)?(\w+)", part[2]))
                  for part in re.finditer(r"octile_runtime_part\((\w+) [^)]*?DEPENDS ([^)]*)\)", text)}
        shown = {}
        for line in (ROOT / "ARCHITECTURE.md").read_text().split("\n"):
            cells = [re.findall(r"`(\w+)/?`", cell) for cell in line.split("|")]
            if len(cells) == 5 and cells[1] and cells[1][0] in arrows:
                shown |= dict.fromkeys(cells[1], set(cells[3]))
        self.assertEqual(shown, {part: on - {"cuda_headers"} for part, on in arrows.items()})
        self.assertGreater(len(shown), 10)

    def test_only_the_kernel_knows_its_policies(self):
        """A kernel's policies meet in kernel.cu alone, so that a new policy is one more file. The prologue names the
        types that nvcc and a reader see by default."""
        places = {"templates/gemm/kernel.cu", "templates/gemm/default_prologue.cuh"}
        lines = lines_under("templates/gemm", (".cu", ".cuh"))
        named = [line for line in lines if re.search(r"OCTILE_(WALK|SCALE|OUTPUT)\b", line.text)]
        self.expect_none(line for line in named if line.file not in places)
        self.assertEqual(len(named), 6)
        pattern = re.compile(r"gemm/(walk|scale|output)/|\b(walk|scale|output)::")
        others = [(line, found[1] or found[2]) for line in lines if line.file not in places
                  and line.folder != "templates/gemm" and (found := pattern.search(line.text))]
        self.expect_none(line for line, other in others if pathlib.Path(line.folder).name != other)

    def test_files_of_a_folder_define_different_names(self):
        """The files of a folder may be compiled as one (octile_compile_together), where the names of their anonymous
        namespaces meet."""
        first, twice = {}, []
        for place in ("generator", "cache", "runtime", "tools"):
            lines = lines_under(place)
            within = ""
            for line in lines:
                if line.text.startswith("namespace octile"):
                    within = line.text
                name = definition_of(line.text)
                if not name or not line.file.endswith(".cc") or line.folder == "tools/cmake" or \
                        line.file == "runtime/compiler/program.cc":
                    continue
                other = first.setdefault((line.folder, within, name), line)
                if other.file != line.file:
                    twice += [other, line]
        self.expect_none(twice)
        self.assertGreater(len(first), 500)
        for line, name in {
            "constexpr std::size_t kMost = 3;": "kMost",
            "constexpr std::array<const char*, 2> kNames{": "kNames",
            "struct Options {": "Options",
            "class A final : public B {": "A",
            "Status run(const Options& options) {": "run(const Options& options",
            "const char* text_of(int x) {": "text_of(int x",
        }.items():
            self.assertEqual(definition_of(line), name)
        for line in ("  constexpr int kInside = 1;", "struct Forward;", "}", "  return f(x);",
                     "using Json = nlohmann::json;", "Result<int> Engine::build(int n) {"):
            self.assertEqual(definition_of(line), "", line)


if __name__ == "__main__":
    unittest.main()
