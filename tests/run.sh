#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--preset NAME] [--gradcheck | --full] [--with-oracle] [--with-browser]

Installs what is missing, builds, and runs the tests.

  (no option)    the quick suite, on the release preset
  --preset NAME  dev, release, asan, tsan (threaded tests only) or portable instead
  --gradcheck    only the gradient checks
  --full         the long sweeps as well (MOEGRAD_FULL=1), then everything on the portable preset
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

# run_ctest PRESET
run_ctest() {
  local selection=() runner=()
  [[ $mode == full ]] || selection+=(-LE full)
  if [[ $1 == tsan ]]; then
    selection+=(-L concurrency)
    # The thread sanitizer of g++ 12 fails under the address randomization of newer kernels.
    if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
  fi
  "${runner[@]}" ctest --test-dir "$moegrad_root/build/$1" -j 2 --output-on-failure \
    --no-label-summary --no-tests=error "${selection[@]}"
}

# Every gradient check of the project has this phrase in its name.
run_gradchecks() {
  local filter='--gtest_filter=*GradientsMatchFiniteDifferences*'
  local total=0 failed=0 program list count log
  log="$(mktemp)"
  trap "rm -f '$log'" EXIT
  cd "$moegrad_root"
  for program in build/"$1"/tests/*_test; do
    [[ -x $program ]] || continue
    list="$("$program" "$filter" --gtest_list_tests)"
    count="$(grep -c '^  ' <<<"$list" || true)"
    ((count)) || continue
    total=$((total + count))
    "$program" "$filter" 2>&1 | tee "$log" || {
      count="$(sed -n 's/^\[  FAILED  \] \([0-9]*\) tests\?, listed below:$/\1/p' "$log")"
      failed=$((failed + ${count:-1}))
    }
  done
  if ((total == 0)); then
    echo "No gradient checks were found!!!"
    exit 1
  fi
  printf '\n%d%% tests passed, %d tests failed out of %d\n' \
    $(((total - failed) * 100 / total)) "$failed" "$total"
  ((failed == 0))
}

moegrad_setup "${more_packages[@]}"
targets=()
[[ $preset == tsan ]] && targets=(framework_test concurrency_test)
[[ $preset == tsan && $mode == full ]] && targets+=(sweep_test)
moegrad_build "$preset" "${targets[@]}"
case $mode in
  quick) run_ctest "$preset" ;;
  gradcheck) run_gradchecks "$preset" ;;
  full)
    export MOEGRAD_FULL=1
    run_ctest "$preset"
    if [[ $preset != portable ]]; then
      moegrad_build portable
      run_ctest portable
    fi
    ;;
esac
