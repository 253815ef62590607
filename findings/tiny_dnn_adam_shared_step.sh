#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tiny-dnn 1.0.0a3 (Debian tiny-dnn 1.0.0a3+ds-3): in Adam, each tensor counts as a step of its own.
#
# Expected: Adam's first step is lr * sign(gradient) for every parameter of every model.
# Seen: the powers of beta1 and beta2 that correct the bias belong to the optimizer, and move once per
#     tensor, not once per step. They move before the first use, too: the first tensor already is at
#     step 2. In a net of three layers the first step shrinks from 0.74 lr in the first weight to
#     0.51 lr in the last bias.
# Consequence: the step of a tensor depends on how many tensors lie before it. Adding a layer changes
#     how all later ones warm up, runs of other frameworks cannot be matched, and with fifty tensors
#     the correction of the first moment is gone after one step.
# moegrad is not affected: each parameter holds its own count of steps.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download tiny-dnn=1.0.0a3+ds-3 libstb-dev=0.0~git20220908.8b5f1f3+ds-1 \
  libgemmlowp-dev=0.0~git20211220.e844ffd-1 libcereal-dev=1.3.2+dfsg-4 \
  rapidjson-dev=1.1.0+dfsg2-7.1 2>apt.log || { cat apt.log; exit 1; }
for package in *.deb; do dpkg -x "$package" .; done
mkdir third_party  # where tiny-dnn looks for stb
ln -s ../usr/include/stb third_party/stb

cat >adam.cpp <<'CPP'
#include <cstdio>
#include <cmath>

#include "tiny_dnn/tiny_dnn.h"
using namespace tiny_dnn;

int main() {
  network<sequential> net;
  net << fully_connected_layer<tan_h>(2, 2) << fully_connected_layer<tan_h>(2, 2)
      << fully_connected_layer<tan_h>(2, 1);
  net.init_weight();
  std::vector<vec_t> before;
  for (auto layer : net) {
    for (auto tensor : layer->weights()) before.push_back(*tensor);
  }
  adam optimizer;
  std::vector<vec_t> x{{0.5f, -0.25f}}, y{{0.3f}};
  net.fit<mse>(optimizer, x, y, 1, 1);  // one step
  std::size_t i = 0;
  for (auto layer : net) {
    for (auto tensor : layer->weights()) {
      std::printf("tensor %zu: first step %.3f lr\n", i,
                  std::abs(before[i][0] - (*tensor)[0]) / optimizer.alpha);
      ++i;
    }
  }
}
CPP
g++ -std=c++14 -w -I . -I usr/include -I usr/include/gemmlowp adam.cpp -o adam -pthread
echo "tiny-dnn 1.0.0a3"
./adam | tee seen

diff - seen <<'TEXT' && echo "as recorded"
tensor 0: first step 0.744 lr
tensor 1: first step 0.639 lr
tensor 2: first step 0.581 lr
tensor 3: first step 0.545 lr
tensor 4: first step 0.522 lr
tensor 5: first step 0.506 lr
TEXT
