#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/bench/scaling.sh [--rounds N = 5] [--plots FOLDER = build/scaling]
#
# How training steps of preset main scale: tokens/s with threads, step time with tokens (more
# sequences, a longer one), forward and backward with experts of which a token uses as many. Each
# round measures every point once, every other round backwards, so that neighbours of the machine
# disturb all alike. Results go to build/scaling; prints what scaling_plots.py makes of them, and
# draws scaling_threads.svg, scaling_tokens.svg and scaling_experts.svg into the folder for plots.
set -euo pipefail
rounds=5
plots=
while (($#)); do
  case "$1=${2-}" in
    --rounds=[1-9] | --rounds=[1-9][0-9]) rounds="$2" ;;
    --plots=?*) plots="$(realpath -m "$2")" ;;
    *) echo "scaling.sh: --rounds takes 1 to 99, --plots a folder; got '$*'" >&2; exit 2 ;;
  esac
  shift 2
done

source "$(dirname "${BASH_SOURCE[0]}")/../../.ci/setup.sh"
moegrad_setup python3-matplotlib
moegrad_build release bench_train_step

# Threads, sequences, tokens of each, experts. What scaling_plots.py starts from comes first.
points=(
  "2 4 512 32"
  "1 4 512 32"
  "2 1 512 32" "2 2 512 32" "2 8 512 32"
  "2 1 1024 32" "2 1 2048 32" "2 1 4096 32" "2 1 8192 32"
  "2 4 512 8" "2 4 512 16" "2 4 512 64" "2 4 512 128"
)
results="$moegrad_root/build/scaling"
plots="${plots:-$results}"
mkdir -p "$results" "$plots"
rm -f "$results"/*.json

# measure ROUND POINT
measure() {
  local threads sequences length experts
  read -r threads sequences length experts <<<"$2"
  echo "round $1 of $rounds: $threads threads, $sequences x $length tokens, $experts experts" >&2
  "$moegrad_root/build/release/tests/bench_train_step" --threads-per-rank "$threads" --warmup 1 --steps 3 \
    --sequences "$sequences" --length "$length" --experts "$experts" \
    --json "$results/$threads-$sequences-$length-$experts.$(printf %02d "$1").json" >/dev/null
}

for ((round = 1; round <= rounds; ++round)); do
  for ((i = 0; i < ${#points[@]}; ++i)); do
    ((round % 2)) && at=$i || at=$((${#points[@]} - 1 - i))
    measure "$round" "${points[at]}"
  done
done
/usr/bin/python3 "$(dirname "${BASH_SOURCE[0]}")/scaling_plots.py" "$results" "$plots"
