#!/usr/bin/env bash
# The Makefile as a newcomer meets it: its help names every target, a word that is none says so, and a PREFIX may have
# a space. Nothing is built.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v make >/dev/null || { echo "skipped: no make here"; exit 77; }

failed=0
check() { # <what> <text> <pattern>
  grep -Eq -- "$3" <<<"$2" || { printf 'FAILED: %s: expected "%s" in:\n%s\n' "$1" "$3" "$2"; failed=1; }
}
unset MAKEFLAGS MAKELEVEL
help=$(make help)
[ "$(wc -L <<<"$help")" -le 80 ] || { printf 'FAILED: make help is wider than 80 columns\n'; failed=1; }
read -ra targets < <(sed -z 's/\\\n//g' Makefile | sed -n 's/^\.PHONY: //p' | head -1)
[ ${#targets[@]} -gt 20 ] || { printf 'FAILED: the Makefile has %d targets\n' ${#targets[@]}; failed=1; }
for target in "${targets[@]}"; do
  [ "$target" = tests ] || check "make help" "$help" "make $target\b"
done
[ "$(make -n tests)" = "$(make -n test)" ] || { echo "FAILED: make tests is not make test"; failed=1; }
if said=$(make docs 2>&1); then
  echo "FAILED: make docs succeeds"
  failed=1
fi
check "make docs" "$said" '^make: docs is a folder, not a target; make help lists the targets$'
check "make install" "$(make -n install 'PREFIX=/opt/a b')" ' "-DPREFIX=/opt/a b" '
[ $failed = 0 ] && echo "the Makefile describes its targets"
exit $failed
