#!/usr/bin/env bash
# Checks the format of all sources with clang-format, their sentences with prose.py, and the host code with clang-tidy by
# the compile commands of build/lint. `--fix` only rewrites the format; `--format-only` leaves clang-tidy out.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly components=(generator templates cache runtime tools tests docs/examples)
mapfile -t sources < <(find "${components[@]}" -type f \
  \( -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) | sort)

if [ "${1:-}" = --fix ]; then
  exec clang-format-19 -i "${sources[@]}"
fi
echo "clang-format: ${#sources[@]} files"
clang-format-19 --dry-run -Werror "${sources[@]}"
tools/prose.py
[ "${1:-}" != --format-only ] || exit 0

# Only the shipped code: at 3 s a file, the tests would double CI's time. The compiler's warnings check them.
readonly shipped=(generator cache runtime tools)
echo "clang-tidy: host code of ${shipped[*]}"
run-clang-tidy-19 -quiet -p build/lint "^$PWD/($(IFS='|'; echo "${shipped[*]}"))/" 2>&1 |
  { grep -v -E '^[0-9]+ warnings? |^Suppressed|^Use -header-filter|^$|^\[|^clang-tidy-19 ' || true; }
