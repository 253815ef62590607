// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests of ops and models: gradcheck, products by Eigen, Qwen3-MoE in plain operations. Include
// it beside moegrad.h. It needs no test framework; framework/autograd/gradcheck_gtest.h is for
// GoogleTest.

#include "framework/autograd/gradcheck.h"
#include "models/causal_lm/plain.h"
#include "ops/matmul_reference.h"
