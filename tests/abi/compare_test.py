"""Changes the public headers and first_sizes.h in ways that break programs, and in ways that do not, and sees what
compare.py says.

    compare_test.py CC HEADERS FIRST_SIZES
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
GEMM_END = r"\n\} octile_gemm_desc;"
#: name: (header, pattern, replacement)
ADDITIONS = {
    "a field at the end": ("octile.h", GEMM_END, "\n  int64_t added;\n} octile_gemm_desc;"),
    "an enumerator": ("octile.h", r"OCTILE_FP32 = 5", "OCTILE_FP32 = 5,\n  OCTILE_ADDED = 6"),
    "a function": ("octile.h", r"(OCTILE_API octile_status octile_plan_destroy)", r"OCTILE_API int octile_added(int x);\n\1"),
    "a struct": ("pieces.h", r"(typedef struct octile_piece \{)", r"typedef struct octile_added {\n  int a;\n} octile_added;\n\1"),
}
BREAKS = {
    "a field less": ("octile.h", r"\n  int32_t sums_batch;[^\n]*", ""),
    "a field in the middle": ("octile.h", r"(octile_gemm_args \{\n  size_t struct_size;\n)", r"\1  int64_t added;\n"),
    "two fields swapped": ("octile.h", r"int64_t n; ([^\n]*)\n  int64_t k;", r"int64_t k; \1\n  int64_t n;"),
    "a wider field": ("octile.h", r"int32_t promote; ", "int64_t promote; "),
    "a field of another type and the same size": ("octile.h", r"int32_t promote; ", "float promote; "),
    "a pointer to another type": ("pieces.h", r"const void\* x; ", "const float* x; "),
    "a struct without struct_size that grows": ("octile.h", r"\n\} octile_tensor_type;", "\n  int a;\n} octile_tensor_type;"),
    "an enumerator with another value": ("octile.h", r"OCTILE_FP16 = 4", "OCTILE_FP16 = 7"),
    "an enumerator less": ("octile.h", r"  OCTILE_FP16 = 4,\n", ""),
    "a macro with another value": ("octile.h", r"(#define OCTILE_DYNAMIC) .*", r"\1 ((int64_t)-2)"),
    "a function less": ("octile.h", r"OCTILE_API octile_status octile_plan_destroy\([^;]*;", ""),
    "a parameter of another type": ("octile.h", r"(octile_plan_prepare\(octile_plan\* plan, )int64_t", r"\1int32_t"),
    "another result": ("octile.h", r"OCTILE_API const char\* octile_last_error", "OCTILE_API char* octile_last_error"),
}
#: name: (pattern, replacement) in first_sizes.h
BROKEN_SIZES = {
    "a first size that has shrunk": (r"(octile_gemm_desc), 120,", r"\1, 112,"),
    "a first size that has grown": (r"(octile_piece), 96,", r"\1, 104,"),
    "a struct without a first size": (r"OCTILE_FIRST_SIZE\(octile_weight_call[^\n]*\n", ""),
}


def main():
    cc, headers, first_sizes = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
    wrong = []

    def said_of(new, sizes, work, *others):
        command = [sys.executable, HERE / "compare.py", "--old", headers, "--new", new, "--first-sizes", sizes]
        return subprocess.run([*command, "--cc", cc, "--work", work, *others], capture_output=True, text=True)

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for changes, is_kept in ((ADDITIONS, True), (BREAKS, False)):
            for name, (header, pattern, replacement) in changes.items():
                shutil.rmtree(work / "new", ignore_errors=True)
                shutil.copytree(headers, work / "new")
                path = work / "new" / "octile" / header
                text, count = re.subn(pattern, replacement, path.read_text(), count=1)
                path.write_text(text)
                said = said_of(work / "new", first_sizes, work / "work")
                if count != 1:
                    wrong.append(f"{name}: the header has no such text any more")
                elif (said.returncode == 0) != is_kept:
                    wrong.append(f"{name}: exit status {said.returncode}\n{said.stderr}")
                elif not is_kept and "breaks the promise" not in said.stderr:
                    wrong.append(f"{name}: refused without the reason\n{said.stderr}")
        for name, (pattern, replacement) in BROKEN_SIZES.items():
            text, count = re.subn(pattern, replacement, first_sizes.read_text(), count=1)
            (work / "first_sizes.h").write_text(text)
            said = said_of(headers, work / "first_sizes.h", work / "work")
            if count != 1:
                wrong.append(f"{name}: first_sizes.h has no such text any more")
            elif said.returncode == 0 or "its row of first_sizes.h says" not in said.stderr:
                wrong.append(f"{name}: exit status {said.returncode}\n{said.stderr}")
            # An earlier release has the struct, whose size of then is the first.
            said = said_of(headers, work / "first_sizes.h", work / "work", "--earlier", headers)
            if said.returncode != 0:
                wrong.append(f"{name}, with an earlier release: exit status {said.returncode}\n{said.stderr}")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
