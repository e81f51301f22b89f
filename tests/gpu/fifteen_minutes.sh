#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# fifteen_minutes.sh RESULTS [SECONDS]: runs what a GPU can show in a quarter of an hour, the most
# valuable first, and writes it to RESULTS. $B is the build and $M its launcher; unpack.sh, which
# pack.sh writes, sets them. Each step has its own limit, so that one that hangs leaves time for the
# others. A step is left out if nothing is left of SECONDS (default 720).
# shellcheck disable=SC2016,SC2317 # the shell of each step expands these texts, and calls run()
if [ -z "${B-}" ] || [ -z "${M-}" ] || [ $# -eq 0 ]; then
  echo "usage: . FOLDER/unpack.sh FOLDER && bash \$P/tests/gpu/fifteen_minutes.sh RESULTS [SECONDS]" >&2
  exit 2
fi
P=$(cd "$(dirname "$0")/../.." && pwd) results=$1 end=$((SECONDS + ${2:-720})) failed=0
true >"$results" || exit
export B M P G=$P/tests/gpu/own_host.sh T=$B/tests/ranks MALLOC_PERTURB_=0 MPIEXEC_TIMEOUT=110
export C=${C:-commit $(git -C "$P" rev-parse --short HEAD)} dtypes='bf16 fp16 fp32' host=
run() { # run RANKS CHAPTER OPTIONS...: runs the chapter with that number on a GPU
  local n=$1 c; c=$(basename "$B/$2"*) && shift 2 && "$M" -n "$n" ${host:+"$host"} "$B/$c/$c" --device cuda "$@"
}
export -f run
# step SECONDS NAME COMMANDS: appends their output, their exit code and seconds to RESULTS
step() {
  local limit=$1 began=$SECONDS code='not begun'
  ((limit < end - began)) || limit=$((end - began))
  ((limit <= 0)) || { timeout -k 5 "$limit" bash -ec "$3" >>"$results" 2>&1 </dev/null; code=$?; }
  [ "$code" = 0 ] || failed=1
  printf '\n== %s | %s | %s s\n' "$2" "$code" $((SECONDS - began)) | tee -a "$results"
}
odd='--task llama --width 72 --heads 3 --sequence 150 --batch 2 --steps 2 --quiet'
step 9 machine 'nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; date -I; echo $C'
step 90 kernels '"$B/tests/gpu/test_kernels" cuda'
step 30 'room for cuBLAS' '"$B/tests/gpu/test_kernels" cuda "--test-case=a product finds room*"'
step 120 'one digest of a Llama in 03, 05, 06 (--recompute, NCCL), 07, 08' 'for d in $dtypes; do
  all=$({ for c in 03 05 06 07 08 "06 --recompute"; do run 2 $c --task llama --steps 4 --dtype $d; done
    host="$G" run 2 06 --task llama --steps 4 --dtype $d --comm nccl; } |
      grep -o "^parameters [^ ]*" | tee -a /dev/stderr)
  test "$(uniq -c <<< "$all")" = "      7 ${all%%[[:cntrl:]]*}"; done'
step 60 'Llamas of odd sizes' "for d in \$dtypes; do run 1 06 $odd --recompute --dtype \$d
    run 1 06 --task llama --width 10 --heads 1 --accumulate 2 --steps 2 --dtype \$d --quiet; done
  run 1 06 --task llama --batch 16384 --sequence 16 --steps 2 --quiet"
step 60 'memory errors' "compute-sanitizer --error-exitcode 1 \"\$B\"/06*/06_zero3 --device cuda $odd"
step 60 'NCCL on 3 ranks' '"$M" -n 3 "$G" "$T/test_communicator" 3 nccl'
step 45 'a rank is stopped' 'HOW=stopped PATIENCE=10 "$M" -n 2 "$G" "$T/test_07_offload" 2 nccl \
  --no-skip "--test-case=rank 1 fails*" && exit 1 || exit $(($? == 4 ? 0 : $?))'
step 240 "steps beside PyTorch's" 'python3 "$P/tests/benchmarks/step_benchmark.py" --device cuda \
  --build "$B" --mpiexec "$M" --rounds 1'
step 100 "kernels of a Llama's step" 'ncu --clock-control none --csv --print-summary per-kernel \
  --metrics gpu__time_duration.sum,dram__bytes.sum --launch-skip 560 --launch-count 480 \
  "$B/03_mixed_precision/03_mixed_precision" --device cuda --dtype bf16 --steps 3 --task llama \
  --quiet --width 4096 --heads 32 --kv-heads 8 --layers 4 --sequence 4096 --batch 1 --lr 1e-5'
step 60 'Adam, norm, mean' '"$B/tests/benchmarks/adam_benchmark" cuda'
for c in 06_zero3 07_offload 08_infinity; do step 40 "overlap of ${c%_*}" "\"\$T/overlap_$c\""; done
step 60 '2^31' 'run 1 06 --task mlp --width 32768 --layers 1 --batch 65536 --steps 2 --dtype fp32'
step 600 'the other tests' 'meson test -C "$B" --suite gpu --no-rebuild'
exit $failed
