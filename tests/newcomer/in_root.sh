#!/usr/bin/env bash
# Installs the packages of `make package` in the root of another system, compiles kernels there, removes them, and does
# the same with the archive. As root:
#   debootstrap --variant=minbase bookworm ROOT
#   tests/newcomer/in_root.sh ROOT build/package/packages <folder with libnvrtc.so.13 and its builtins>
# The Debian packages are for Debian 12 and Ubuntu 24.04. A root with an older zstd (Ubuntu 22.04) has only the archive.
set -euo pipefail
root=$1 packages=$2 nvrtc=$3
[ "$(id -u)" = 0 ] || { echo "in_root.sh: chroot needs root" >&2; exit 1; }

rm -rf "$root/octile-check"
mkdir -p "$root/octile-check"
cp "$packages"/*.deb "$packages"/*.tar.gz "$root/octile-check/"
# Where `pip install --user nvidia-cuda-nvrtc` puts NVRTC.
wheel=$root/root/.local/lib/python3.11/site-packages/nvidia/cu13/lib
mkdir -p "$wheel"
cp -L "$nvrtc"/libnvrtc.so.13 "$nvrtc"/libnvrtc-builtins.so.13.* "$wheel/"

# The library finds its own folder in /proc.
if [ ! -e "$root/proc/self" ] && mount -t proc proc "$root/proc" 2>/dev/null; then
  trap 'umount "$root/proc"' EXIT
fi
inside() { chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
try() { # <octile>
  rm -rf "$root/root/.cache/octile"
  inside "$1" --version
  inside "$1" doctor | grep '^NVRTC  *13.* (/root/.local/'
  inside "$1" compile --gemm 16x7168x2048 >/dev/null
  inside "$1" cache verify
}

sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release"
zstd=$(inside dpkg-query -W -f '${Version}' libzstd1)
if inside dpkg --compare-versions "$zstd" ge 1.5.2; then
  inside sh -c 'dpkg -i /octile-check/*.deb' >/dev/null
  try octile
  if [ -x "$root/usr/bin/python3" ]; then
    tar -C "$(dirname "$0")/../.." -c README.md CONTRIBUTING.md FORMAT.md BENCHMARKS.md SECURITY.md Makefile \
      CMakePresets.json docs tools/bench/pages.sh tools/tune tools/plots tests/newcomer |
      tar -x -C "$root/octile-check"
    inside CUDA_HOME="${wheel#"$root"}/.." python3 /octile-check/tests/newcomer/newcomer.py --prefix /usr \
      --work /octile-check/newcomer | tail -1
  fi
  # The loader knows the library without a word of the user.
  inside sh -c '/sbin/ldconfig -p' | grep 'liboctile.so.0 '
  inside dpkg -r octile liboctile-dev liboctile0 >/dev/null
  [ ! -e "$root/usr/bin/octile" ] && [ ! -e "$root/usr/include/octile" ]
else
  echo "libzstd1 is $zstd: the archive alone"
fi
inside sh -c 'mkdir /octile-check/archive && tar xzf /octile-check/*.tar.gz -C /octile-check/archive'
archive=$(cd "$root" && echo octile-check/archive/*/bin/octile)
try "/$archive"
rm -rf "$root/octile-check" "$root/root/.local/lib/python3.11/site-packages/nvidia"
echo "packages and archive work"
