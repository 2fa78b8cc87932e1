#!/usr/bin/env bash
# Measures on one GPU what the tables of BENCHMARKS.md need, and appends it to a file of records (docs/records.md).
#   tools/bench/pages.sh --commit COMMIT --octile PATH --out FILE [--python PATH] [--seconds N] [--parts LIST]
#                        [--cache DIR] [--dry-run]
# --octile   the built command
# --python   a Python that has the package and PyTorch; without it the part `torch` is left out
# --seconds  how long the whole run may take, default 380: no part begins later, and one that runs then is ended
# --parts    only these parts, by their names below, such as mx,experts; their order stays
# --cache    a cache of kernels, which `octile compile` may have filled before; by default an empty one
# --dry-run  prints the commands and runs none
# The parts stand in the order of their numbers' worth: README's first. A part's records are appended when it
# has ended well, so that a run that is cut off leaves whole tables; those of other parts go to FILE.unfinished. A later
# run with --parts adds what is missing. Nothing is compiled but kernels. The last lines are a table of the contents of
# FILE. Exits with 1 if a part failed or was ended.
set -uo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
readonly tree

die() {
  printf 'pages.sh: %s\n' "$1" >&2
  exit 2
}
commit='' octile='' out='' python='' seconds=380 parts='' cache='' dry=''
while [ $# -gt 0 ]; do
  case $1 in
    --commit | --octile | --out | --python | --seconds | --parts | --cache)
      [ $# -ge 2 ] || die "$1 has no value"
      declare "${1#--}=$2"
      shift 2
      ;;
    --dry-run)
      dry=yes
      shift
      ;;
    *) die "no option is called '$1'; allowed: --commit, --octile, --out, --python, --seconds, --parts, --cache," \
      '--dry-run' ;;
  esac
done
readonly names=(wgrad quantise torch forward linear experts few-rows dgrad scales mx card)
[ -n "$commit" ] || die '--commit is missing; allowed: the commit that was built'
[ -x "$octile" ] || die "--octile is '$octile'; allowed: the built command"
[ -n "$out" ] || die '--out is missing; allowed: a file of records, or one that does not exist'
[ -z "$python" ] || [ -x "$python" ] || die "--python is '$python'; allowed: a Python's path"
[[ $seconds =~ ^[1-9][0-9]{0,4}$ ]] || die "--seconds is '$seconds'; allowed: 1 to 99999"
IFS=, read -r -a wanted <<<"$parts"
for name in "${wanted[@]}"; do
  [[ " ${names[*]} " == *" $name "* ]] || die "--parts has '$name'; allowed: ${names[*]}"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -n "$cache" ] || {
  cache=$work/cache
  mkdir -m 700 "$cache"
}
export OCTILE_COMMIT=$commit OCTILE_CACHE_DIR=$cache
failed=() left_out=()

# part <name> <most seconds> <command>... runs a part, whose command gets --records.
part() {
  local name=$1 bound=$2 start=$SECONDS left=$((seconds - SECONDS)) status
  shift 2
  [ ${#wanted[@]} = 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  set -- "$@" --records "$work/$name.jsonl"
  if [ -n "$dry" ]; then
    printf '%-8s %3s s ' "$name" "$bound"
    printf ' %q' "$@"
    printf '\n'
    return
  fi
  if [ "$left" -lt 5 ]; then
    left_out+=("$name")
    return
  fi
  printf '\n== %s\n' "$name"
  [ "$bound" -le "$left" ] || bound=$left
  timeout --kill-after=2 "$bound" "$@" >"$work/said" 2>&1
  status=$?
  tail -n 6 "$work/said"
  printf '== %s: exit status %s after %s s of %s\n' "$name" "$status" "$((SECONDS - start))" "$bound"
  local to=$out
  [ "$status" = 0 ] || failed+=("$name ($status)") to=$out.unfinished
  [ ! -e "$work/$name.jsonl" ] || cat "$work/$name.jsonl" >>"$to"
}

readonly bench=("$octile" bench) peer=(--baseline cublaslt --rounds 9)
# Layers of DeepSeek-V3, Llama-3-8B, Llama-3-70B and Qwen3-235B, fused as in serving, one expert of each. Llama-3-405B
# is left out: its weights take seconds to make and to check.
layers=''
for layer in 2112x7168 24576x1536 32768x512 7168x16384 4096x7168 7168x2048 36864x7168 7168x18432 6144x4096 4096x4096 \
  28672x4096 4096x14336 10240x8192 8192x8192 57344x8192 8192x28672 9216x4096 4096x8192 3072x4096 4096x1536; do
  layers+="${layers:+, }{\"name\": \"$layer\", \"n\": ${layer%x*}, \"k\": ${layer#*x}, \"split\": \"none\"}"
done
echo "{\"model\": \"layers\", \"source\": \"four models\", \"tokens\": [4096], \"gemms\": [$layers]}" >"$work/layers.json"
readonly models=(--model "$work/layers.json")
for scales in tensor row; do
  for promote in none 128 512; do
    echo "gemm m=? n=7168 k=2048 a=e4m3:$scales b=e4m3:$scales d=bf16 acc=0 promote=$promote"
  done
done >"$work/scales.txt"
for b in 32x32 1x32; do
  echo "gemm m=? n=4096 k=7168 a=e4m3:1x32 b=e4m3:$b d=bf16 acc=0 promote=32"
done >"$work/mx.txt"

part wgrad 60 "${bench[@]}" "${models[@]}" --passes wgrad --tokens 4096 "${peer[@]}"
part quantise 60 "${bench[@]}" --suite quantize --select '16384 cols=7168,masked' --rounds 5
[ -z "$python" ] || part torch 80 "$python" "$tree/tools/lab/layer.py" --rounds 9
part forward 60 "${bench[@]}" "${models[@]}" --passes fprop --tokens 64,4096 "${peer[@]}"
part linear 40 "${bench[@]}" linear --gemm 8192x8192x8192,16384x4096x8192,8192x4096x4096 --rounds 9
part experts 75 "${bench[@]}" experts --model deepseek-v3 --ep 8 --tokens 8192 --rounds 7
part few-rows 60 "${bench[@]}" quantize --tokens 1,4,16,64,128,512,1024,4096 --rounds 9
part dgrad 45 "${bench[@]}" "${models[@]}" --passes dgrad --tokens 4096 "${peer[@]}"
part scales 30 "${bench[@]}" --problem-file "$work/scales.txt" --tokens 128,4096 "${peer[@]}"
part mx 30 "$octile" tune --problem-file "$work/mx.txt" --tokens 4096,8192 --budget 15 --baseline cublaslt \
  --out "$work/tuning"
part card 20 "$octile" doctor --measure  # no table's: the speeds that the cost model takes of a card

[ -z "$dry" ] || exit 0
printf '\n'
[ ! -e "$out" ] || python3 "$tree/tools/plots/pages.py" --summary "$out"
[ ${#left_out[@]} = 0 ] || printf 'not begun within %s s: %s\n' "$seconds" "${left_out[*]}"
[ ${#failed[@]} = 0 ] || {
  printf 'failed: %s; what they measured is in %s\n' "${failed[*]}" "$out.unfinished"
  exit 1
}
