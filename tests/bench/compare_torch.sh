#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/bench/compare_torch.sh [main|fine] [--runs N = 5] [--threads N = 2] [--python PYTHON]
#            [--script SCRIPT = tests/bench/torch_train_step.py] [--sdpa] [--fused-adamw] [--bf16-autocast]
#
# Training steps here and in PyTorch on the same cores, run alternately; prints the ratio of the
# median tokens/s with the spread of the ratios of neighbouring runs, and of peak memory.
#
# PYTHON is an interpreter that has PyTorch, which runs on the BLAS that it was built with. Without
# PYTHON, Debian's PyTorch runs on BLIS and on OpenBLAS, both with OpenMP: on Debian's default BLAS,
# two threads are slower than one. Where the CPU has AVX-512, OpenBLAS is told to use it, which it
# would not on CPUs that are younger than itself; BLIS has no kernels for those.
#
# The last three options are SCRIPT's. moegrad computes in float32 whatever they are.
set -euo pipefail
preset=main runs=5 threads=2 python='' options=()
script="$(dirname "${BASH_SOURCE[0]}")/torch_train_step.py"
while (($#)); do
  case "$1=${2-}" in
    main=* | fine=*) preset="$1" ;;
    --sdpa=* | --fused-adamw=* | --bf16-autocast=*) options+=("$1") ;;
    --runs=[1-9] | --runs=[1-9][0-9]) runs="$2" && shift ;;
    --threads=[1-9] | --threads=[1-9][0-9]) threads="$2" && shift ;;
    --python=?*) python="$2" && shift ;;
    --script=?*) script="$2" && shift ;;
    *) echo "compare_torch.sh: takes main or fine, --runs and --threads of 1 to 99, --python, --script," \
            "--sdpa, --fused-adamw, --bf16-autocast; got '$*'" >&2; exit 2 ;;
  esac
  shift
done
case "$preset" in
  main) model=(--experts 32 --topk 4 --moe-inter 256 --batch 4) ;;
  fine) model=(--experts 128 --topk 8 --moe-inter 128 --batch 1) ;;
esac

source "$(dirname "${BASH_SOURCE[0]}")/../../.ci/setup.sh"
folder_of_blas() { dirname "$(dpkg -L "$1" | grep '/libblas\.so\.3$')"; }
if [[ -n $python ]]; then
  moegrad_setup
  names=("its own BLAS") folders=('')
else
  python=/usr/bin/python3
  moegrad_setup python3-torch libblis4-openmp libopenblas0-openmp
  names=(BLIS OpenBLAS) folders=("$(folder_of_blas libblis4-openmp)" "$(folder_of_blas libopenblas0-openmp)")
  grep -qw avx512vl /proc/cpuinfo && export OPENBLAS_CORETYPE=SkylakeX
fi
version="$("$python" -c 'import torch; print(torch.__version__)')"
moegrad_build release bench_train_step
cores="$(taskset -cp $$ | sed 's/.*: //')"
cpu="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
echo "$cpu, cores $cores, $threads threads, preset $preset; PyTorch $version, $script ${options[*]}"

torch_run() {
  env ${1:+LD_LIBRARY_PATH="$1"} OMP_NUM_THREADS="$threads" BLIS_NUM_THREADS="$threads" \
    "$python" "$script" --threads "$threads" --moe sorted "${model[@]}" "${options[@]}" |
    sed -n 's/^tokens\/s \([0-9]*\).*/\1/p; s/^peak RSS \([0-9]*\) MiB/\1/p' | paste -sd ' '
}
own_run() {
  "$moegrad_root/build/release/tests/bench_train_step" --preset "$preset" --world-size 1 \
    --threads-per-rank "$threads" |
    sed -n 's/.* threads: \([0-9.]*\) tokens\/s, MFU \([0-9.]*\) %.*/\1 \2/p
            s/.*; peak \([0-9.]*\) MiB$/\1/p' | paste -sd ' '
}

for ((run = 0; run < runs; ++run)); do
  row="$(own_run)"
  for folder in "${folders[@]}"; do
    figures="$(torch_run "$folder")"
    row+=" $figures"
  done
  echo "$row"
done | python3 -c '
import statistics, sys
names, rows = sys.argv[1:], []
for line in sys.stdin:
    row = list(map(float, line.split()))
    rows.append(row)
    own, mfu, own_peak, *torch = row
    print(f"moegrad {own:5.0f} tokens/s (MFU {mfu:.0f} %), {own_peak:5.0f} MiB | PyTorch",
          " | ".join(f"on {name} {torch[2 * i]:5.0f} tokens/s, {torch[2 * i + 1]:5.0f} MiB"
                     for i, name in enumerate(names)), flush=True)
if not rows:
    sys.exit("compare_torch.sh: no run has ended")
own, _, own_peak, *torch = map(statistics.median, zip(*rows))
for i, name in enumerate(names):
    ratios = [row[0] / row[3 + 2 * i] for row in rows]
    print(f"against PyTorch on {name}: ratio of medians {own / torch[2 * i]:.2f} (single runs "
          f"{min(ratios):.2f} to {max(ratios):.2f}), peak memory {own_peak / torch[2 * i + 1]:.2f}")
' "${names[@]}"
