#!/usr/bin/env bash
# Measures on one GPU what the tables of BENCHMARKS.md need, and appends it to a file of records (docs/records.md).
#   tools/bench/pages.sh --commit COMMIT --octile PATH --out FILE [--python PATH]
# --octile is the built command and --python a Python that has the package and PyTorch; without it PyTorch's table is
# left out. Nothing is compiled but kernels. Each part has a bound, and what it measured before the bound is kept; all
# bounds together are 590 s. The last lines are a table of what was measured. Exits with 1 if a part failed.
set -uo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
readonly tree

die() {
  printf 'pages.sh: %s\n' "$1" >&2
  exit 2
}
commit='' octile='' out='' python=''
while [ $# -gt 0 ]; do
  case $1 in
    --commit | --octile | --out | --python)
      [ $# -ge 2 ] || die "$1 has no value"
      declare "${1#--}=$2"
      shift 2
      ;;
    *) die "no option is called '$1'; allowed: --commit, --octile, --out, --python" ;;
  esac
done
[ -n "$commit" ] || die '--commit is missing; allowed: the commit that was built'
[ -x "$octile" ] || die "--octile is '$octile'; allowed: the built command"
[ -n "$out" ] || die '--out is missing; allowed: a file of records, or one that does not exist'
[ -z "$python" ] || [ -x "$python" ] || die "--python is '$python'; allowed: a Python's path"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OCTILE_COMMIT=$commit OCTILE_CACHE_DIR=$work/cache
mkdir -m 700 "$OCTILE_CACHE_DIR"
failed=()

# part <name> <seconds> <command>... runs a part of the measurement within its bound.
part() {
  local name=$1 bound=$2 start=$SECONDS
  shift 2
  printf '\n== %s\n' "$name"
  timeout --kill-after=2 "$bound" "$@" >"$work/said" 2>&1
  local status=$?
  tail -n 6 "$work/said"
  printf '== %s: exit status %s after %s s of %s\n' "$name" "$status" "$((SECONDS - start))" "$bound"
  [ "$status" = 0 ] || failed+=("$name ($status)")
}

readonly models=deepseek-v3,llama-3-8b,llama-3-70b,llama-3-405b,mixtral-8x7b,qwen3-235b-a22b
for scales in tensor row; do
  for promote in none 128 512; do
    echo "gemm m=? n=7168 k=2048 a=e4m3:$scales b=e4m3:$scales d=bf16 acc=0 promote=$promote"
  done
done >"$work/scales.txt"
for b in 32x32 1x32; do
  echo "gemm m=? n=4096 k=7168 a=e4m3:1x32 b=e4m3:$b d=bf16 acc=0 promote=32"
done >"$work/mx.txt"

part 'compile' 60 "$octile" compile --model $models --passes fprop,dgrad,wgrad --tokens 64,4096 --device cuda
part 'clock, memory, launch' 20 "$octile" doctor --measure --records "$out"
part 'forward GEMMs' 90 "$octile" bench --model $models --passes fprop --tokens 64,4096 --baseline cublaslt --rounds 9 \
  --records "$out"
part 'gradient GEMMs' 90 "$octile" bench --model $models --passes wgrad,dgrad --tokens 4096 --baseline cublaslt \
  --rounds 9 --records "$out"
part 'scales per tensor and per row' 30 "$octile" bench --problem-file "$work/scales.txt" --tokens 128,4096 \
  --baseline cublaslt --rounds 9 --records "$out"
part 'MX' 35 "$octile" tune --problem-file "$work/mx.txt" --tokens 4096,8192 --budget 25 --baseline cublaslt \
  --out "$work/tuning" --records "$out"
part 'quantisers of large tensors' 50 "$octile" bench --suite quantize --select '16384 cols=7168,masked' --rounds 5 \
  --records "$out"
part 'quantisers of few rows' 50 "$octile" bench quantize --sweep --cols 7168 --rounds 9 --records "$out"
part 'linear layers' 35 "$octile" bench linear --gemm 8192x8192x8192,16384x4096x8192,8192x4096x4096 --rounds 9 \
  --records "$out"
part 'experts' 70 "$octile" bench experts --model deepseek-v3 --ep 8 --tokens 8192 --rounds 7 --records "$out"
[ -z "$python" ] || part 'PyTorch layers' 60 "$python" "$tree/runtime/python/benchmarks/layer.py" --records "$out"

printf '\n'
python3 "$tree/tools/plots/pages.py" --summary "$out"
[ ${#failed[@]} = 0 ] || {
  printf 'failed: %s\n' "${failed[*]}"
  exit 1
}
