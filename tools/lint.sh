#!/usr/bin/env bash
# Format (clang-format) of all sources, and clang-tidy of the host code by the compile commands of
# build/lint. `--fix` rewrites the format and does nothing else;
# `--format-only` checks it and does nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly rooms=(generator templates cache runtime tools tests)
mapfile -t sources < <(find "${rooms[@]}" -type f \
  \( -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) | sort)

if [ "${1:-}" = --fix ]; then
  exec clang-format-19 -i "${sources[@]}"
fi
echo "clang-format: ${#sources[@]} files"
clang-format-19 --dry-run -Werror "${sources[@]}"
[ "${1:-}" != --format-only ] || exit 0

# What is shipped, not the tests: at 3 s a file all of it would take CI's time twice, and the compiler's
# warnings hold the tests.
readonly shipped=(generator cache runtime tools)
echo "clang-tidy: host code of ${shipped[*]}"
run-clang-tidy-19 -quiet -p build/lint "^$PWD/($(IFS='|'; echo "${shipped[*]}"))/" 2>&1 |
  { grep -v -E '^[0-9]+ warnings? |^Suppressed|^Use -header-filter|^$|^\[|^clang-tidy-19 ' || true; }
