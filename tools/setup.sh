#!/usr/bin/env bash
# Installs only what is missing for a goal; a second call does nothing.
#   tools/setup.sh build   compile the library and the command
#   tools/setup.sh test    the same, and build and run the tests (default)
#   tools/setup.sh lint    the same, and check format and style
#   tools/setup.sh torch   as test, and build and test the Python package: PyTorch, 5 GB
#   tools/setup.sh fuzz    as build, and build and run the fuzzers
#   tools/setup.sh plots   draw the plots; installs nothing else
# Debian packages come from apt (as root, or through sudo). Python packages, and CUDA headers with NVRTC
# if no toolkit is installed, go into build/deps/venv and nowhere else.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly venv=build/deps/venv
readonly build_packages=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev
                         libexpected-dev libxxhash-dev libzstd-dev libmd-dev libarchive-dev libgtest-dev
                         libgmock-dev)
readonly test_packages=(pkg-config python3-venv)
readonly lint_packages=(clang-format-19 clang-tidy-19)
readonly fuzz_packages=(clang libclang-rt-dev)
lists_are_fresh=

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_packages <package>... installs those that are missing, in one apt-get call.
install_packages() {
  local package missing=() as_root=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "no apt here; the counterparts of these Debian packages must be there: $*"
    return 0
  fi
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  [ -n "$lists_are_fresh" ] || "${as_root[@]}" apt-get update -qq
  lists_are_fresh=yes
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# install_wheels <name> installs the pins of tools/requirements/<name>.txt. A copy of that file in the environment
# records what was installed, so that a changed pin is noticed.
install_wheels() {
  local pins=tools/requirements/$1.txt
  cmp -s "$pins" "$venv/$1.txt" && return 0
  install_packages python3-venv
  say "installing $(grep -v '^#' "$pins" | paste -sd ' ') into $venv"
  # python3-venv belongs to the system's Python and to no other in PATH.
  [ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$pins"
  cp "$pins" "$venv/$1.txt"
}

install_cuda() {
  cmake -DOCTILE_VENV="$PWD/$venv" -P tools/cmake/octile_cuda.cmake >/dev/null 2>&1 ||
    install_wheels cuda
}

goal=${1:-test}
packages=("${build_packages[@]}")
case $goal in
  plots) install_wheels plots; exit ;;
  build) ;;
  test | torch) packages+=("${test_packages[@]}") ;;
  lint) packages+=("${test_packages[@]}" "${lint_packages[@]}") ;;
  fuzz) packages+=("${fuzz_packages[@]}") ;;
  *) die "goal is \"$goal\"; allowed are build, test, torch, lint, fuzz and plots" ;;
esac

install_packages "${packages[@]}"
install_cuda
case $goal in test | torch | lint) install_wheels oracle ;; esac
case $goal in torch) install_wheels torch ;; esac
