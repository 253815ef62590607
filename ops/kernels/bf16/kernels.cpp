// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/bf16/kernels.h"

namespace moegrad::kernels::bf16 {

const Loops& loops_of(CpuKernels kernels) {
  switch (kernels) {
    case CpuKernels::kAvx512:
      return *avx512_loops();
    case CpuKernels::kAvx512Bf16:
      return *avx512_bf16_loops();
    case CpuKernels::kAmx:
      return *amx_loops();
    case CpuKernels::kNarrow:
      break;
  }
  return *narrow_loops();
}

}  // namespace moegrad::kernels::bf16
