#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/bench/compare_libraries.sh [--benchmark_...]
#
# The grouped matmul on one thread, in turn with Eigen, OpenBLAS, BLIS and oneDNN.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../.ci/setup.sh"
moegrad_setup libopenblas0-serial libblis4-serial libdnnl2
moegrad_build release bench_grouped_matmul
exec "$moegrad_root/build/release/tests/bench_grouped_matmul" --libraries "$@"
