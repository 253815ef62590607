// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests of ops and models compare with: central differences, Eigen's products, Qwen3-MoE in
// plain operations; opt-in, beside moegrad.h. It needs no test framework. With GoogleTest there is
// also framework/autograd/gradcheck_gtest.h.

#include "framework/autograd/gradcheck.h"
#include "models/qwen3_moe/plain.h"
#include "ops/matmul_reference.h"
