// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "framework/distributed/process_group.h"

namespace moegrad {

// Blocking collectives over typed spans. T is deduced from the span that is written.

/// values [n] = reduction over the ranks, in place.
template <class T>
void all_reduce(ProcessGroup& group, std::span<T> values, ReduceOp op = ReduceOp::kSum,
                const CollectiveOptions& options = {}) {
  group.all_reduce(std::as_writable_bytes(values), dtype_of<T>, op, options)->wait();
}

/// values [n] = the values of rank `root`.
template <class T>
void broadcast(ProcessGroup& group, std::span<T> values, int root,
               const CollectiveOptions& options = {}) {
  group.broadcast(std::as_writable_bytes(values), root, dtype_of<T>, options)->wait();
}

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
  check<ValueError>(output.size() == input.size() * static_cast<std::size_t>(group.size()),
                    "all_gather: output must hold ", group.size(), " inputs of ", input.size(),
                    " elements, got ", output.size());
  const auto copy_out = [bytes = std::as_writable_bytes(output)](PeerSpans inputs) {
    auto* out = bytes.data();
    for (const auto& peer : inputs) out = std::copy(peer.begin(), peer.end(), out);
  };
  group.all_gather(std::as_bytes(input), dtype_of<T>, copy_out, options)->wait();
}

}  // namespace moegrad
