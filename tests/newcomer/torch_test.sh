#!/usr/bin/env bash
# The messages to a newcomer without PyTorch, and with one that is too old: when CMake is configured and when the
# package is imported. The PyTorch here is a folder with a version and a header.
#   torch_test.sh <folder to work in>
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$1
rm -rf "$work"
mkdir -p "$work/torch/include/torch/csrc/stable"
touch "$work/torch/include/torch/csrc/stable/library.h" "$work/torch/__init__.py"
# A Python without packages, but for this one and those of PACKAGES.
mkdir "$work/packages"
ln -s "$source_dir/runtime/python/octile" "$work/packages/octile"
printf '#!/bin/sh\nPYTHONPATH=%s/packages:$PACKAGES exec python3 -S "$@"\n' "$work" >"$work/python"
chmod +x "$work/python"

failed=0
expect() { # <status> <pattern> <command>...
  local said status=0
  said=$("${@:3}" 2>&1) || status=$?
  # CMake wraps its sentences.
  said=$(tr -s ' \n' '  ' <<<"$said")
  if [ $status != "$1" ] || ! grep -Eq -- "$2" <<<"$said"; then
    printf 'FAILED: %s: expected status %s and "%s", got status %s and:\n%s\n' "${*:3}" "$1" "$2" $status "$said"
    failed=1
  fi
}
cd "$work/packages"  # Python also looks where it is started
configure=(cmake "-DPYTHON=$work/python" -P "$source_dir/tools/cmake/octile_torch.cmake")
import=("$work/python" -c 'import octile.torch')
version() { printf "__version__ = '%s'\n" "$1" >"$work/torch/version.py"; }

export PACKAGES=/nonexistent PYTHONPYCACHEPREFIX=$work/pycache
expect 1 'finds no PyTorch. The operators need PyTorch 2.10 or newer: `pip install "torch>=2.10"`' "${configure[@]}"
expect 1 'needs PyTorch 2.10 or newer, and .* has none; this line installs it: .* -m pip install "torch>=2.10"' \
  "${import[@]}"
export PACKAGES=$work
version 2.9.1+cu128
expect 1 'has version "2.9.1". The operators need PyTorch 2.10 or newer' "${configure[@]}"
expect 1 'needs PyTorch 2.10 or newer, and .* has 2.9.1.cu128; this line' "${import[@]}"
# A new enough release passes the check; this folder has nothing else that the package imports.
for new in 2.10.0 2.11.0+cu130 3.0.0a0; do
  version $new
  expect 0 "PyTorch: $work/torch" "${configure[@]}"
  expect 0 '' "$work/python" -c "import runpy; runpy.run_path('$source_dir/runtime/python/octile/torch/_needs.py')"
done
rm "$work/torch/include/torch/csrc/stable/library.h"
expect 1 'has no headers of its stable ABI' "${configure[@]}"

# One version in all places that state it.
for place in 'pyproject.toml:torch>=2.10"' 'tools/cmake/octile_torch.cmake:OLDEST 2.10)' \
  'runtime/python/octile/torch/_needs.py:OLDEST = (2, 10)' 'README.md:PyTorch 2.10' 'docs/torch.md:PyTorch 2.10'; do
  grep -qF "${place#*:}" "$source_dir/${place%%:*}" || { echo "FAILED: ${place%%:*} lacks ${place#*:}"; failed=1; }
done
[ $failed = 0 ] && echo "PyTorch's version is checked"
exit $failed
