#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# oneDNN 2.6.3 (Debian libdnnl2 2.6.3-1): log-sigmoids are above 0 and soft-relus below 0; with AVX2 the
# logarithm of 1 is not 0.
#
# Expected: logsigmoid(x) = -log(1 + exp(-x)) <= 0; soft_relu(x) = log(1 + exp(x)) >= 0, and close to
#     exp(x) for x far below 0; log(1) = 0.
# Seen: soft_relu(-20) = -1.9e-6 where 2.1e-9 is right, and logsigmoid(20) = +1.9e-6, a log-probability
#     above 0. The generated AVX2 code has log(1) = -1.4e-6 (twelve times the float epsilon), the SSE4.1
#     code has 0.
# Consequence: a loss that is a mean of -logsigmoid (contrastive, preference) sinks below 0 once its
#     pairs are well separated. A check `loss >= 0`, or a root or logarithm of a softplus (a scale, a
#     variance), fails for inputs near -20 though the function has no zero.
# moegrad is not affected: it calls no oneDNN, and its softplus is max(x, 0) + log1p(exp(-|x|)).
set -euo pipefail
grep -qw avx2 /proc/cpuinfo || { echo "no AVX2 here: nothing to see"; exit 0; }
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download libdnnl2=2.6.3-1 libdnnl-dev=2.6.3-1 ocl-icd-libopencl1=2.3.1-1 2>apt.log ||
  { cat apt.log; exit 1; }
for package in *.deb; do dpkg -x "$package" .; done
libraries="$folder/usr/lib/$(gcc -print-multiarch)"

cat >log.cpp <<'CPP'
#include <cstdio>
#include <dnnl.hpp>
#include <vector>
using namespace dnnl;

int main() {
  const engine cpu(engine::kind::cpu, 0);
  stream work(cpu);
  const auto result = [&](algorithm kind, float alpha, float at) {
    std::vector<float> x(16, at), y(16);
    const memory::desc shape({16}, memory::data_type::f32, memory::format_tag::x);
    const eltwise_forward::primitive_desc plan({prop_kind::forward_inference, kind, shape, alpha}, cpu);
    memory from(shape, cpu, x.data()), to(shape, cpu, y.data());
    eltwise_forward(plan).execute(work, {{DNNL_ARG_SRC, from}, {DNNL_ARG_DST, to}});
    work.wait();
    return y[0];
  };
  std::printf("log(1) = %.2g\n", result(algorithm::eltwise_log, 0, 1));
  std::printf("soft_relu(-20) = %.2g\n", result(algorithm::eltwise_soft_relu, 1, -20));
  std::printf("logsigmoid(20) = %.2g\n", result(algorithm::eltwise_logsigmoid, 0, 20));
}
CPP
g++ -std=c++17 -I usr/include log.cpp -o log "$libraries/libdnnl.so.2" -Wl,-rpath-link,"$libraries"
export LD_LIBRARY_PATH="$libraries"
echo "oneDNN 2.6.3, AVX2"
DNNL_MAX_CPU_ISA=AVX2 ./log | tee seen
echo "SSE4.1"
DNNL_MAX_CPU_ISA=SSE41 ./log | tee -a seen

diff - seen <<'TEXT' && echo "as recorded"
log(1) = -1.4e-06
soft_relu(-20) = -1.9e-06
logsigmoid(20) = 1.9e-06
log(1) = 0
soft_relu(-20) = -1.9e-06
logsigmoid(20) = 1.9e-06
TEXT
