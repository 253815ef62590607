// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"

namespace moegrad {

// Blocking collectives over typed spans, numbers and tensors. T is deduced from the span that is
// written, or from the number.

/// values [n] = reduction over the ranks, in place.
template <class T>
void all_reduce(ProcessGroup& group, std::span<T> values, ReduceOp op = ReduceOp::kSum,
                const CollectiveOptions& options = {}) {
  group.all_reduce(std::as_writable_bytes(values), dtype_of<T>, op, options)->wait();
}

/// The reduction over the ranks of a number, such as a loss or a count of tokens.
template <class T>
requires(std::is_same_v<T, double> || std::is_same_v<T, std::int64_t>) [[nodiscard]] T
    all_reduce(ProcessGroup& group, T value, ReduceOp op = ReduceOp::kSum,
               const CollectiveOptions& options = {}) {
  all_reduce(group, std::span(&value, 1), op, options);
  return value;
}

/// tensor = reduction over the ranks, in place; as a modification in place it counts for autograd
/// (Tensor::mutable_data). DtypeError unless it is float32, float64 or int64, LayoutError unless it
/// is contiguous.
void all_reduce(ProcessGroup& group, Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                const CollectiveOptions& options = {});

/// values [n] = those of rank `root`.
template <class T>
void broadcast(ProcessGroup& group, std::span<T> values, int root,
               const CollectiveOptions& options = {}) {
  group.broadcast(std::as_writable_bytes(values), root, dtype_of<T>, options)->wait();
}

/// tensor = that of rank `root`, in place; errors and modification as for all_reduce.
void broadcast(ProcessGroup& group, Tensor& tensor, int root,
               const CollectiveOptions& options = {});

/// output [n] = reduction over the ranks of chunk rank() of input [size() * n].
template <class T>
void reduce_scatter(ProcessGroup& group, std::span<const std::type_identity_t<T>> input,
                    std::span<T> output, ReduceOp op = ReduceOp::kSum,
                    const CollectiveOptions& options = {}) {
  group
      .reduce_scatter({std::as_bytes(input)}, std::as_writable_bytes(output), dtype_of<T>, op,
                      options)
      ->wait();
}

/// output [size() * n] = the inputs [n] of all ranks, in rank order.
template <class T>
void all_gather(ProcessGroup& group, std::span<const std::type_identity_t<T>> input,
                std::span<T> output, const CollectiveOptions& options = {}) {
  group.all_gather(std::as_bytes(input), std::as_writable_bytes(output), dtype_of<T>, options)
      ->wait();
}

/// On rank 0 the bytes of all ranks, in their order, of any lengths; nothing on the others. So a
/// program collects its ranks' results.
std::vector<std::vector<std::byte>> gather_bytes(ProcessGroup& group,
                                                 std::span<const std::byte> own,
                                                 const CollectiveOptions& options = {});

/// The texts of all ranks of `group`, in the order of the ranks, on every rank. Errors and plans
/// travel this way. Without a group, the result is this rank's text.
std::vector<std::string> all_gather_texts(const std::shared_ptr<ProcessGroup>& group,
                                          std::string_view text,
                                          const CollectiveOptions& options = {});

/// The ranks whose text is not that of rank 0, as "1, 3"; empty if all texts are the same.
std::string ranks_that_differ(const std::vector<std::string>& texts);

}  // namespace moegrad
