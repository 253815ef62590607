// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/parts_reduction.h"

#include <algorithm>

#include "framework/distributed/tree_reduction.h"

namespace moegrad {

// Each piece ends where any input changes to another part.
void reduce_parts(std::span<PartsCursor> inputs, std::byte* output, std::int64_t count, Dtype dtype,
                  ReduceOp op, std::vector<std::byte>& scratch) {
  const auto element = static_cast<std::size_t>(size_of(dtype));
  auto left = static_cast<std::size_t>(count) * element;
  std::vector<const std::byte*> pieces(inputs.size());
  while (left > 0) {
    auto run = left;
    for (const auto& input : inputs) run = std::min(run, input.contiguous());
    std::ranges::transform(inputs, pieces.begin(), &PartsCursor::data);
    reduce_tree(pieces, output, static_cast<std::int64_t>(run / element), dtype, op, scratch);
    for (auto& input : inputs) input.advance(run);
    output += run;
    left -= run;
  }
}

}  // namespace moegrad
