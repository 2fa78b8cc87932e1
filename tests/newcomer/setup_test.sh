#!/usr/bin/env bash
# tools/setup.sh as a newcomer meets it, with an apt, a sudo and an index of Python packages that are not real:
# nothing is called if nothing is missing, one question is asked for everything, and a failure names the next step.
#   setup_test.sh <folder to work in>
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$1
rm -rf "$work"
mkdir -p "$work/bin" "$work/toolkit/include" "$work/toolkit/lib64" "$work/tree/tools"
cp -r "$source_dir/tools/setup.sh" "$source_dir/tools/requirements" "$source_dir/tools/cmake" "$work/tree/tools/"

failed=0
check() { # <what> <text> <pattern>
  # Lines that setup.sh has wrapped are joined again.
  if ! sed -z 's/\nsetup:   / /g; s/ \\\n    / /g' <<<"$2" | grep -Eq -- "$3"; then
    printf 'FAILED: %s: expected a line like "%s" in:\n%s\n' "$1" "$3" "$2"
    failed=1
  fi
}

# The folder of programs holds those that setup.sh uses, and stand-ins.
for program in bash sh sed grep cat cmp cp sort paste dirname env cmake mkdir ln readlink rm; do
  ln -s "$(command -v $program)" "$work/bin/$program"
done
stand_in() { # <name> <script>
  printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
toolkit() { # <CUDA_VERSION>
  echo "#define CUDA_VERSION $1" >"$work/toolkit/include/cuda.h"
  touch "$work/toolkit/include/nvrtc.h" "$work/toolkit/lib64/libnvrtc.so.13"
}
# Runs setup.sh in the tree, whose Python environment is empty and has a pip that reaches no index. Sets `said` and
# `status`.
run_setup() {
  rm -rf "$work/tree/build" "$work/calls"
  touch "$work/calls"
  mkdir -p "$work/tree/build/deps/venv/bin"
  cp "$work/pip" "$work/tree/build/deps/venv/bin/pip"
  status=0
  said=$(env -i PATH="$work/bin" CALLS="$work/calls" CUDA_HOME="$work/toolkit" CUDA_PATH=/nonexistent \
    bash "$work/tree/tools/setup.sh" "$@" 2>&1) || status=$?
}
readonly every_package='echo installed'
readonly no_pkg_config='case "$*" in *pkg-config*) echo missing;; *) echo installed;; esac'

stand_in apt-get 'echo "$@" >>"$CALLS"; exit 100'
stand_in sudo 'echo sudo "$@" >>"$CALLS"; exit 1'
stand_in id 'echo 0'
stand_in pip 'echo "no index answers" >&2; exit 1'
mv "$work/bin/pip" "$work/pip"

# Everything is there: no apt, no sudo, and `make build` says nothing.
stand_in dpkg-query "$every_package"
toolkit 13000
run_setup build
[ $status = 0 ] && [ -z "$said" ] && [ ! -s "$work/calls" ] ||
  { printf 'FAILED: build with everything there: status %s, %s\n' $status "$said"; failed=1; }

# The same for `make test`, without a network: only the packages of the oracles are missing, and that is said.
run_setup test
[ $status = 0 ] && [ ! -s "$work/calls" ] || { printf 'FAILED: test: %s\n' "$said"; failed=1; }
check "test without a network" "$said" '^setup: pip cannot install what the oracle tests compare with; they are skipped'
check "test without a network" "$said" '^setup: pip cannot install the oldest NVRTC .*skipped'

# An apt that fails names the line to run by hand.
stand_in dpkg-query "$no_pkg_config"
run_setup test
[ $status = 1 ] || { echo "FAILED: apt failed and setup.sh did not"; failed=1; }
check "apt fails" "$said" '^setup: apt failed; run this as root'
check "how long" "$said" '^setup: installing 1 package and .*one to three minutes'

# Neither root nor sudo: one line to paste.
stand_in id 'echo 1000'
mv "$work/bin/sudo" "$work/sudo"
run_setup test
[ $status = 1 ] || { echo "FAILED: no root, no sudo, and status $status"; failed=1; }
check "no sudo" "$said" '^  apt-get update && apt-get install -y --no-install-recommends pkg-config$'

# With sudo: one call for all, and a counted line for each package while apt works.
mv "$work/sudo" "$work/bin/sudo"
stand_in sudo 'echo sudo >>"$CALLS"; exec "$@"'
stand_in apt-get 'case "$*" in
*"install -s"*) echo "Inst a (1)"; echo "Inst b (2)";;
*install*) echo "Get:1 http://mirror bookworm/main amd64 liba amd64 1.2-3 [12 kB]"; echo "Unpacking a"; echo "Setting up a (1) ..."; echo "Setting up b (2) ...";; esac'
run_setup test
[ $status = 0 ] && [ "$(grep -c sudo "$work/calls")" = 1 ] ||
  { printf 'FAILED: sudo was called %s times, status %s\n' "$(grep -c sudo "$work/calls")" $status; failed=1; }
check "sudo" "$said" '^setup: sudo asks for your password once'
for line in '[1/2] a' '[2/2] b' 'Get:1 liba [12 kB]'; do
  grep -qFx "setup:   $line" <<<"$said" || { printf 'FAILED: no line "%s" in:\n%s\n' "$line" "$said"; failed=1; }
done

# A toolkit that is too old, and pip that fails: both name CUDA_HOME.
stand_in dpkg-query "$every_package"
sed -i 's|/usr/local/cuda|/nonexistent|' "$work/tree/tools/cmake/octile_cuda.cmake"
toolkit 12040
run_setup build
[ $status = 1 ] || { echo "FAILED: no NVRTC, and status $status"; failed=1; }
check "old toolkit" "$said" '^setup: .*toolkit: CUDA_VERSION is 12040, needed is 12080.*CUDA_HOME'
check "pip fails" "$said" '^setup: pip cannot install NVRTC; set CUDA_HOME'
run_setup everything
check "bad goal" "$said" '^setup: goal is "everything"; allowed are build, test, torch, package, lint, format, fuzz, page and plots$'

# Packages that it would install are listed and not installed, and --packages-only calls no pip.
run_setup --list fuzz
[ ! -s "$work/calls" ] || { printf 'FAILED: --list calls\n%s\n' "$(cat "$work/calls")"; failed=1; }
check "list" "$said" '^g[+][+]$'
check "list" "$said" '^clang$'
run_setup --packages-only test
[ $status = 0 ] && [ -z "$said" ] || { printf 'FAILED: --packages-only: %s\n' "$said"; failed=1; }
run_setup --help
[ $status = 0 ] && [ ! -s "$work/calls" ] || { echo "FAILED: --help has status $status"; failed=1; }
check "help" "$said" '^  tools/setup.sh torch  '

# With many packages missing, no line is wider than 80 columns but for a word that is.
stand_in dpkg-query 'echo missing'
stand_in id 'echo 1000'
mv "$work/bin/sudo" "$work/sudo"
for reader in root sudo; do
  run_setup lint
  check "$reader" "$said" 'apt-get install -y --no-install-recommends .*clang-format-19'
  [ "$(wc -L <<<"$said")" -le 80 ] || { printf 'FAILED: wider than 80 columns:\n%s\n' "$said"; failed=1; }
  mv "$work/sudo" "$work/bin/sudo" 2>/dev/null || true
done
[ $failed = 0 ] && echo "setup.sh does as it says"
exit $failed
