// SPDX-License-Identifier: Apache-2.0
#include "fsdp/same_values.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "framework/distributed/compare_checksums.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "fsdp/state.h"

namespace moegrad::fsdp {
namespace {

/// What one process group compares.
struct Comparison {
  std::shared_ptr<ProcessGroup> ranks;
  std::vector<std::string> names;
  std::vector<std::int64_t> checksums;
};

using Comparisons = std::vector<Comparison>;

Comparison* comparison_over(const std::shared_ptr<ProcessGroup>& ranks, Comparisons& comparisons) {
  if (ranks == nullptr || ranks->size() == 1) return nullptr;
  auto found = std::ranges::find(comparisons, ranks, &Comparison::ranks);
  if (found == comparisons.end()) found = comparisons.insert(found, {ranks, {}, {}});
  return &*found;
}

void add(const ParamGroup& group, const std::shared_ptr<ProcessGroup>& ranks,
         Comparisons& comparisons) {
  auto* const comparison = comparison_over(ranks, comparisons);
  if (comparison == nullptr) return;
  const auto checksums = group.initial_checksums();
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    comparison->names.push_back(group.params()[i].name);
    comparison->checksums.push_back(checksums.empty() ? kNoChecksum : std::int64_t{checksums[i]});
  }
}

void add(const NamedTensors& buffers, const std::shared_ptr<ProcessGroup>& ranks,
         Comparisons& comparisons) {
  if (buffers.empty()) return;
  auto* const comparison = comparison_over(ranks, comparisons);
  if (comparison == nullptr) return;
  for (const auto& [name, buffer] : buffers) {
    comparison->names.push_back(name);
    const Tensor values = clone(buffer);  // contiguous
    comparison->checksums.push_back(crc32c(values.bytes()));
  }
}

}  // namespace

void check_same_values(const std::vector<State*>& states, const NamedTensors& buffers) {
  for (const auto& [name, buffer] : buffers) {
    check(!buffer.is_meta(), "fully_shard: buffer '", name,
          "' is still on the meta device; call to_empty() and fill it before the first forward");
  }
  Comparisons comparisons;  // in an order that is the same on all ranks
  for (const auto* state : states) {
    for (const auto& group : state->groups()) {
      add(*group, group->ranks().shard, comparisons);
      add(*group, group->ranks().replicas, comparisons);
    }
  }
  const auto& ranks = states.front()->ranks();
  add(buffers, ranks.shard, comparisons);
  add(buffers, ranks.replicas, comparisons);
  for (const auto& [group, names, checksums] : comparisons) {
    compare_checksums("fully_shard", *group, names, checksums);
  }
}

}  // namespace moegrad::fsdp
