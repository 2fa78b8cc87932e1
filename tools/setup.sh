#!/usr/bin/env bash
# Installs only missing packages of a goal; a second call does nothing, and
# needs no network.
#   tools/setup.sh build    compile the library and the command
#   tools/setup.sh test     the same, and build and run the tests (default)
#   tools/setup.sh package  as build, and make packages
#   tools/setup.sh torch    as test, and build and test the Python package:
#                           PyTorch, 5 GB
#   tools/setup.sh lint     as test, and check format and style
#   tools/setup.sh format   check format, and nothing else
#   tools/setup.sh fuzz     as build, and build and run the fuzzers
#   tools/setup.sh plots    as build, and draw the plots
#   tools/setup.sh page     as build, and look at the page of `octile report` in
#                           Chromium: 290 MB
# Debian packages come from apt, in one call as root or through sudo. Python
# packages, and CUDA headers with NVRTC if no toolkit is installed, go into
# build/deps/venv and nowhere else. Before the goal:
#   --list           prints the Debian packages of the goal, installs nothing
#   --packages-only  installs the Debian packages alone
set -euo pipefail
cd "$(dirname "$0")/.."

readonly venv=build/deps/venv
readonly build_packages=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev
                         libexpected-dev libxxhash-dev libzstd-dev libmd-dev libarchive-dev libgtest-dev
                         libgmock-dev)
readonly package_packages=(dpkg-dev file python3-venv)
readonly test_packages=(pkg-config python3-venv "${package_packages[@]}")
readonly torch_packages=(python3-dev)  # torch.compile compiles C++ that includes Python.h
readonly format_packages=(clang-format-19)
readonly lint_packages=("${format_packages[@]}" clang-tidy-19)
readonly page_packages=(python3-venv chromium fonts-dejavu-core)
readonly fuzz_packages=(clang libclang-rt-dev)
# Sizes of the wheels of a list, for a guess at the time.
readonly -A wheel_megabytes=([cuda]=95 [oldest_nvrtc]=85 [oracle]=22 [page]=34 [page_test]=50 [plots]=55 [torch]=4910)
# The library that draws the charts of pages; the build embeds it if it is there.
readonly chart_library=build/deps/page/vega.js
readonly columns=80

# wrap <start of the first line> <start of the others> <end of lines that go on> <text> prints the text in lines of
# 80 columns, broken at spaces.
wrap() {
  local line=$1 first=1 word words
  read -ra words <<<"$4"
  for word in "${words[@]}"; do
    if [ $first = 1 ]; then
      line+=$word
      first=0
    elif [ $((${#line} + 1 + ${#word} + ${#3})) -gt $columns ]; then
      printf '%s%s\n' "$line" "$3"
      line=$2$word
    else
      line+=" $word"
    fi
  done
  printf '%s\n' "$line"
}
say() { wrap 'setup: ' 'setup:   ' '' "$*"; }
# die <sentence> [command] prints both and ends.
die() {
  say "$1" >&2
  [ $# -lt 2 ] || wrap '  ' '    ' " \\" "$2" >&2
  exit 1
}
# print_help prints the comment at the top of this file.
print_help() {
  local line
  while IFS= read -r line; do
    case $line in
      '#!'*) ;;
      '# '*) printf '%s\n' "${line#'# '}" ;;
      *) break ;;
    esac
  done <tools/setup.sh
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# missing_of <package>... prints those that are not installed.
missing_of() {
  local package
  for package in "$@"; do
    is_installed "$package" || printf '%s\n' "$package"
  done
}

# short_get <line of apt> prints what is downloaded, without where from.
short_get() {
  local words
  read -ra words <<<"$1"
  if [ ${#words[@]} -gt 6 ]; then
    printf 'setup:   %s %s %s %s\n' "${words[0]}" "${words[4]}" "${words[@]: -2}"
  else
    printf 'setup:   %s\n' "${1:0:columns-9}"
  fi
}

# count_steps turns apt's output into a counted line for each package, and drops the rest. Without it, minutes would
# pass in silence. The number of packages is in a line "plan <number>".
count_steps() {
  local line i=0 steps=0
  while IFS= read -r line; do
    case $line in
      'plan '*) steps=${line#plan } ;;
      Get:*) short_get "$line" ;;
      Fetched* | E:* | Err:* | W:*) wrap 'setup:   ' 'setup:     ' '' "$line" ;;
      'Setting up '*)
        i=$((i + 1))
        line=${line#Setting up }
        printf 'setup:   [%d/%d] %s\n' "$i" "$steps" "${line%% (*}" ;;
    esac
  done
}

# install_packages <package>... installs those that are missing, and asks for a password at most once.
install_packages() {
  local missing line as_root=() plan
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "no apt here; the counterparts of these Debian packages must be there: $*"
    return 0
  fi
  mapfile -t missing < <(missing_of "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  # Whoever is asked once is not asked again by the next goal.
  mapfile -t missing < <(missing_of "$@" "${build_packages[@]}" "${test_packages[@]}" | sort -u)
  line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "neither root nor sudo; run this once as root, then call again:" "$line"
    as_root=(sudo)
    say "sudo asks for your password once, for:"
    wrap 'setup:   ' 'setup:     ' '' "$line"
  fi
  say "installing ${#missing[@]} package$([ ${#missing[@]} = 1 ] || echo s)" \
    "and what is needed for that, from apt: one to three minutes"
  wrap 'setup:   ' 'setup:   ' '' "${missing[*]}"
  # One call: a sudo that is asked twice may ask for a password twice.
  plan='apt-get update -q && printf "plan %d\n" "$(apt-get install -s --no-install-recommends "$@" | grep -c ^Inst)" &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"'
  "${as_root[@]}" sh -c "$plan" sh "${missing[@]}" 2>&1 | count_steps ||
    die "apt failed; run this as root and see what it says:" "$line"
}

# install_wheels <name> installs the pins of tools/requirements/<name>.txt. A copy of that file in the environment
# records what was installed, so that a changed pin is noticed. Fails if pip does.
install_wheels() {
  local pins=tools/requirements/$1.txt
  cmp -s "$pins" "$venv/$1.txt" && return 0
  install_packages python3-venv
  say "installing $(grep -v '^#' "$pins" | paste -sd ' ') into $venv:" \
    "${wheel_megabytes[$1]} MB, about $((8 + wheel_megabytes[$1] / 30)) s"
  # python3-venv belongs to the system's Python and to no other in PATH.
  [ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv "$venv"
  # Python compiles what it imports; pip would compile every file of PyTorch.
  "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check -r "$pins" || return 1
  cp "$pins" "$venv/$1.txt"
}

install_cuda() {
  local found
  found=$(cmake -DOCTILE_VENV="$PWD/$venv" -P tools/cmake/octile_cuda.cmake 2>&1) && return 0
  # A toolkit that is there and does not serve is worth a word.
  found=$(sed -n 's/^ *\(.*: CUDA_VERSION is .*\)/\1/p' <<<"$found")
  [ -z "$found" ] || say "$found; CUDA_HOME may name a newer toolkit"
  install_wheels cuda ||
    die "pip cannot install NVRTC; set CUDA_HOME to the folder of a CUDA toolkit, 12.8 or newer, and none is needed"
}

install_chart_library() {
  install_wheels page && { [ "$chart_library" -nt "$venv/page.txt" ] ||
    "$venv/bin/python" tools/page/bundle.py "$chart_library"; }
}

mode=all
case ${1:-} in
  -h | --help | help)
    print_help
    exit
    ;;
  --list | --packages-only)
    mode=$1
    shift
    ;;
esac
[ $# -le 1 ] || die "one goal at a time, not \"$*\"; tools/setup.sh --help lists them"
goal=${1:-test}
packages=("${build_packages[@]}")
case $goal in
  plots) packages+=(python3-venv) ;;
  build) ;;
  test) packages+=("${test_packages[@]}") ;;
  torch) packages+=("${test_packages[@]}" "${torch_packages[@]}") ;;
  package) packages+=("${package_packages[@]}") ;;
  format) packages=("${format_packages[@]}") ;;
  lint) packages+=("${test_packages[@]}" "${lint_packages[@]}") ;;
  fuzz) packages+=("${fuzz_packages[@]}") ;;
  page) packages+=("${page_packages[@]}") ;;
  *) die "goal is \"$goal\"; allowed are build, test, torch, package, lint, format, fuzz, page and plots" ;;
esac
if [ "$mode" = --list ]; then
  printf '%s\n' "${packages[@]}"
  exit
fi

install_packages "${packages[@]}"
[ "$mode" = all ] || exit 0
case $goal in
  format) exit ;;
esac
install_cuda
case $goal in
  test | torch | lint)
    install_wheels oracle ||
      say "pip cannot install what the oracle tests compare with; they are skipped, all others run"
    ;;
esac
case $goal in
  test | torch)
    install_wheels oldest_nvrtc ||
      say "pip cannot install the oldest NVRTC that serves; the tests that compile with it are skipped"
    ;;
esac
case $goal in torch | plots) install_wheels "$goal" ;; esac
# A build without it makes pages without charts; what is shipped has it.
case $goal in
  torch | package | page)
    install_chart_library || die "pip cannot install what draws the charts of pages, which packages and wheels have"
    ;;
esac
case $goal in page) install_wheels page_test ;; esac
