// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/collectives.h"

#include <string_view>

#include "framework/runtime/error.h"

namespace moegrad {
namespace {

std::span<std::byte> checked_bytes(std::string_view op, Tensor& tensor) {
  const auto dtype = tensor.dtype();
  check<DtypeError>(dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 || dtype == Dtype::kInt64,
                    op, ": tensor must be float32, float64 or int64, got ", dtype);
  check<LayoutError>(tensor.layout() == Layout::kND, op,
                     ": tensor must be row-major ND, got FRACTAL_NZ");
  check<LayoutError>(tensor.is_contiguous(), op, ": tensor must be contiguous, got shape ",
                     tensor.shape(), " with strides ", tensor.strides());
  return tensor.mutable_bytes();
}

}  // namespace

void all_reduce(ProcessGroup& group, Tensor& tensor, ReduceOp op,
                const CollectiveOptions& options) {
  const auto bytes = checked_bytes("all_reduce", tensor);
  group.all_reduce(bytes, tensor.dtype(), op, options)->wait();
}

void broadcast(ProcessGroup& group, Tensor& tensor, int root, const CollectiveOptions& options) {
  const auto bytes = checked_bytes("broadcast", tensor);
  group.broadcast(bytes, root, tensor.dtype(), options)->wait();
}

}  // namespace moegrad
