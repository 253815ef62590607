#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/bench/compare_torch.sh [main|fine] [RUNS = 5]
#
# Training steps here and in PyTorch on the same cores, run alternately; prints the ratio of the
# median tokens/s with the spread of the ratios of neighbouring runs, and of peak memory. PyTorch
# runs on BLIS with OpenMP: on Debian's default BLAS, two threads are slower than one.
set -euo pipefail
preset="${1:-main}"
runs="${2:-5}"
case "$preset" in
  main) model=(--experts 32 --topk 4 --moe-inter 256 --batch 4) ;;
  fine) model=(--experts 128 --topk 8 --moe-inter 128 --batch 1) ;;
  *) echo "compare_torch.sh: the preset must be main or fine, got '$preset'" >&2; exit 2 ;;
esac

source "$(dirname "${BASH_SOURCE[0]}")/../../.ci/setup.sh"
moegrad_setup python3-torch libblis4-openmp
moegrad_build release bench_train_step
baseline="$moegrad_root/../shared/peers/torch_baseline.py"
[[ -f $baseline ]] || baseline="$moegrad_root/tests/bench/torch_train_step.py"
blis="$(dirname "$(dpkg -L libblis4-openmp | grep '/libblas\.so\.3$')")"
threads=2
cores="$(taskset -cp $$ | sed 's/.*: //')"
echo "cores $cores, $threads threads, preset $preset; PyTorch: $(basename "$baseline") with $blis"

torch_run() {
  LD_LIBRARY_PATH="$blis" OMP_NUM_THREADS=$threads BLIS_NUM_THREADS=$threads \
    /usr/bin/python3 "$baseline" --threads $threads --moe sorted "${model[@]}" |
    sed -n 's/^tokens\/s \([0-9]*\).*/\1/p; s/^peak RSS \([0-9]*\) MiB/\1/p' | paste -sd ' '
}
own_run() {
  "$moegrad_root/build/release/tests/bench_train_step" --preset "$preset" --ranks 1 \
    --threads $threads |
    sed -n 's/.* threads: \([0-9.]*\) tokens\/s, MFU \([0-9.]*\) %.*/\1 \2/p
            s/.*; peak \([0-9.]*\) MiB$/\1/p' | paste -sd ' '
}

for ((run = 0; run < runs; ++run)); do
  read -r own mfu own_peak < <(own_run)
  read -r torch torch_peak < <(torch_run)
  echo "$own $mfu $own_peak $torch $torch_peak"
done | /usr/bin/python3 -c '
import statistics, sys
rows = []
for line in sys.stdin:
    own, mfu, own_peak, torch, torch_peak = map(float, line.split())
    rows.append((own, mfu, own_peak, torch, torch_peak))
    print(f"moegrad {own:6.0f} tokens/s (MFU {mfu:.0f} %), {own_peak:5.0f} MiB | "
          f"PyTorch {torch:6.0f} tokens/s, {torch_peak:5.0f} MiB | {own / torch:.2f}", flush=True)
own, mfu, own_peak, torch, torch_peak = map(statistics.median, zip(*rows))
ratios = [row[0] / row[3] for row in rows]
print(f"ratio of medians {own / torch:.2f} (single runs {min(ratios):.2f} to {max(ratios):.2f}), "
      f"peak memory {own_peak / torch_peak:.2f}")
'
