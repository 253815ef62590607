#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--preset NAME] [--gradcheck | --full] [--with-oracle] [--with-browser]

Installs what is missing, builds, and runs tests. The last line says how many passed, failed and were
skipped; what may be skipped is named above it, with how to run it.

  (no option)    the quick suite, on the release preset
  --preset NAME  dev, release, asan (test programs only, all with --full), tsan (threaded tests only)
                 or portable instead
  --gradcheck    only the gradient checks
  --full         the full suite: the long runs as well (MOEGRAD_FULL=1), then the quick suite and the
                 long runs that compare numbers on the portable preset
  --with-oracle  installs python3-torch as well, so that the comparison with PyTorch is not skipped
  --with-browser installs chromium as well, so that a run's report is opened in it
  --help         this text
TEXT
}

refuse() {
  echo "tests/run.sh: $1" >&2
  usage >&2
  exit 2
}

preset=release
mode=quick
more_packages=()
while (($#)); do
  case "$1" in
    --preset)
      [[ ${2-} =~ ^(dev|release|asan|tsan|portable)$ ]] || refuse "unknown preset '${2-}'"
      preset="$2"
      shift
      ;;
    --gradcheck | --full)
      [[ $mode == quick ]] || refuse "--gradcheck and --full exclude each other"
      mode="${1#--}"
      ;;
    --with-oracle) more_packages+=(python3-torch) ;;
    --with-browser) more_packages+=(chromium) ;;
    --help | -h)
      usage
      exit 0
      ;;
    *) refuse "unknown option '$1'" ;;
  esac
  shift
done

source "$(dirname "${BASH_SOURCE[0]}")/../.ci/setup.sh"

results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

# run_ctest PRESET MODE
run_ctest() {
  local preset="$1" mode="$2" selection=() runner=()
  # Other arithmetic needs no second run of what is killed and delayed a thousand times.
  [[ $mode == numbers ]] && selection+=(-LE '^full$')
  [[ $mode == full || $mode == numbers ]] || selection+=(-LE full)
  # Every gradient check of the project has this phrase in its name.
  if [[ $mode == gradcheck ]]; then
    export GTEST_FILTER='*GradientsMatchFiniteDifferences*'
    selection+=(-R '_test$')
  fi
  # Under a sanitizer only --full runs what takes the same code through further models, optimizers and
  # numbers of ranks. Every other preset always does.
  local further='Sweep/PretrainedOnRanks.*:*/PretrainedGolden.*:PretrainedOnRanks.Golden*'
  further+=':ExpertParallel.*EveryOptimizer:ExpertParallel.HoldsMore*:OnRanks/ForcedRouting.*/8*'
  further+=':Conformance.Row18_*:Conformance.Row19_*:MatrixOptimizersOfAModel.*:RankMemory.*'
  further+=':EveryOptimizerOverRanks.GoesOn*:*.ContinuesATrainingOfReplicas*'
  further+=':TensorParallelModels.InBFloat16*:TensorParallelModels.AllKinds*'
  further+=':TensorParallelModels.EachForgotten*:TensorParallelTraining.OfADenseModel*'
  further+=':MemoryPlan.ChangesNoBitWhatever*:MemoryPlan.ChangesNoBitAndEach*:MemoryPlan.OffloadingMakes*'
  further+=':FullyShard.TrainsOnNumbersThatAreNoPowersOfTwo*:FullyShard.ComputesInBFloat16*'
  further+=':FullyShard.ShardsTiedEmb*:Interleaved.PairsGiveTheBits*:CheckpointReshard.Continues*'
  further+=':TrainingWithAPolicy.ThatRecomputes*:*ThatCutsOther*:*ThatNeverHas*'
  if [[ $preset == asan && $mode == quick ]]; then
    selection+=(-R '_test$|^mpi_ranks$')
    export GTEST_FILTER="-$further"
  fi
  if [[ $preset == tsan ]]; then
    selection+=(-L concurrency)
    # Long chains and sums on one thread, and what takes the same threads through further dtypes and plans.
    further+=':DeepGraph.*:*NoRecursion:Box.*:QuantizedMmAllReduce.IsTheSum*:*/Delays.GiveOnePeak/*'
    further+=':*/TrainingOnAnyMesh.*BFloat16:Scale/0.*:ClipGradNormOverRanks.KnowsOf*'
    further+=':ClipGradNormOverRanks.LeavesNo*:*/DispatchedGradients.*/4'
    [[ $mode != quick ]] || export GTEST_FILTER="-$further"
    # The thread sanitizer of g++ 12 fails under the address randomization of newer kernels.
    if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
  fi
  mkdir "$results/$preset"
  # One more than there are cores: some tests mostly wait.
  GTEST_OUTPUT="xml:$results/$preset/" "${runner[@]}" ctest --test-dir "$moegrad_root/build/$preset" \
    -j "$(($(nproc) + 1))" \
    --output-on-failure --no-label-summary --no-tests=error "${selection[@]}" \
    --output-junit "$results/$preset/ctest.xml"
}

moegrad_setup "${more_packages[@]}"
targets=()
# Suites that start programs take most of the time under a sanitizer, and run in --full.
[[ $preset == asan && $mode == quick ]] && targets=(test_programs)
[[ $preset == tsan ]] && targets=(threaded_test_programs)
[[ $preset == tsan && $mode == full ]] && targets+=(sweep_test)
[[ $preset == release && $mode == full ]] && targets=(all benchmarks)
[[ $mode == full ]] && export MOEGRAD_FULL=1
status=0
moegrad_build "$preset" "${targets[@]}"
run_ctest "$preset" "$mode" || status=$?
if [[ $mode == full && $preset != portable && $status == 0 ]]; then
  moegrad_build portable
  unset MOEGRAD_FULL
  run_ctest portable numbers || status=$?
fi
python3 "$moegrad_root/tests/count_results.py" "$results"/* || status=$?
exit "$status"
