#!/bin/sh
# release.sh <version>: keeps the public headers and the C programs of a release, which later ones are compared with.
set -eu
cd "$(dirname "$0")/../.."
[ $# = 1 ] || { echo "usage: tests/abi/release.sh <version>, such as 0.1.0" >&2; exit 2; }
folder=tests/abi/$1
rm -rf "$folder/include"
mkdir -p "$folder/include" "$folder/programs"
cp -r runtime/include/octile "$folder/include/"
cp tests/c_api/check.h tests/c_api/*_test.c "$folder/programs/"
