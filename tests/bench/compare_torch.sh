#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/bench/compare_torch.sh [main|fine] [RUNS = 5] [BASELINE = tests/bench/torch_train_step.py]
#
# Training steps here and in PyTorch on the same cores, run alternately; prints the ratio of the
# median tokens/s with the spread of the ratios of neighbouring runs, and of peak memory. PyTorch
# runs on BLIS and on OpenBLAS, both with OpenMP: on Debian's default BLAS, two threads are slower
# than one. Where the CPU has AVX-512, OpenBLAS is told to use it, which it would not on CPUs that
# are younger than itself; BLIS has no kernels for those.
set -euo pipefail
preset="${1:-main}"
runs="${2:-5}"
baseline="${3:-$(dirname "${BASH_SOURCE[0]}")/torch_train_step.py}"
case "$preset" in
  main) model=(--experts 32 --topk 4 --moe-inter 256 --batch 4) ;;
  fine) model=(--experts 128 --topk 8 --moe-inter 128 --batch 1) ;;
  *) echo "compare_torch.sh: the preset must be main or fine, got '$preset'" >&2; exit 2 ;;
esac

source "$(dirname "${BASH_SOURCE[0]}")/../../.ci/setup.sh"
moegrad_setup python3-torch libblis4-openmp libopenblas0-openmp
moegrad_build release bench_train_step
folder_of_blas() { dirname "$(dpkg -L "$1" | grep '/libblas\.so\.3$')"; }
blis="$(folder_of_blas libblis4-openmp)"
openblas="$(folder_of_blas libopenblas0-openmp)"
grep -qw avx512vl /proc/cpuinfo && export OPENBLAS_CORETYPE=SkylakeX
threads=2
cores="$(taskset -cp $$ | sed 's/.*: //')"
version="$(/usr/bin/python3 -c 'import torch; print(torch.__version__)')"
cpu="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
echo "$cpu, cores $cores, $threads threads, preset $preset; PyTorch $version, $baseline"

torch_run() {
  LD_LIBRARY_PATH="$1" OMP_NUM_THREADS=$threads BLIS_NUM_THREADS=$threads \
    /usr/bin/python3 "$baseline" --threads $threads --moe sorted "${model[@]}" |
    sed -n 's/^tokens\/s \([0-9]*\).*/\1/p; s/^peak RSS \([0-9]*\) MiB/\1/p' | paste -sd ' '
}
own_run() {
  "$moegrad_root/build/release/tests/bench_train_step" --preset "$preset" --world-size 1 \
    --threads-per-rank $threads |
    sed -n 's/.* threads: \([0-9.]*\) tokens\/s, MFU \([0-9.]*\) %.*/\1 \2/p
            s/.*; peak \([0-9.]*\) MiB$/\1/p' | paste -sd ' '
}

for ((run = 0; run < runs; ++run)); do
  echo "$(own_run) $(torch_run "$blis") $(torch_run "$openblas")"
done | /usr/bin/python3 -c '
import statistics, sys
rows = []
for line in sys.stdin:
    row = list(map(float, line.split()))
    rows.append(row)
    own, mfu, own_peak, *torch = row
    print(f"moegrad {own:5.0f} tokens/s (MFU {mfu:.0f} %), {own_peak:5.0f} MiB | PyTorch on BLIS "
          f"{torch[0]:5.0f} tokens/s, {torch[1]:5.0f} MiB | on OpenBLAS {torch[2]:5.0f} tokens/s, "
          f"{torch[3]:5.0f} MiB", flush=True)
own, _, own_peak, *torch = map(statistics.median, zip(*rows))
for i, blas in enumerate(("BLIS", "OpenBLAS")):
    ratios = [row[0] / row[3 + 2 * i] for row in rows]
    print(f"against PyTorch on {blas}: ratio of medians {own / torch[2 * i]:.2f} (single runs "
          f"{min(ratios):.2f} to {max(ratios):.2f}), peak memory {own_peak / torch[2 * i + 1]:.2f}")
'
