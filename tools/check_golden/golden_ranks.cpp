// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_ranks.h"

#include <cstdint>
#include <span>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"

namespace moegrad::tools {
namespace {

/// A checksum over what it is given, in order.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) { sum_ = crc32c(bytes, sum_); }
  void add(double value) { add(std::as_bytes(std::span(&value, 1))); }
  template <class T>
  void add(const std::vector<T>& values) {
    if constexpr (std::is_arithmetic_v<T>) {
      add(std::as_bytes(std::span(values)));
    } else {
      for (const auto& value : values) add(value);
    }
  }
  void add(const Tensor& tensor) {
    if (!tensor.defined()) return;
    const Tensor whole = clone(tensor.detach());
    add(whole.bytes());
  }
  void add(const GoldenRouting& routing) {
    add(routing.logits);
    add(routing.experts);
    add(routing.weights);
    add(routing.tokens_per_expert);
  }
  void add(const GoldenComputed& computed) {
    for (const double value : {computed.loss, computed.ce, computed.aux}) add(value);
    add(computed.logits);
    add(computed.hidden);
    add(computed.routing);
  }
  void add(const GoldenTrained& trained) {
    for (const auto* values :
         {&trained.lr, &trained.loss, &trained.ce, &trained.aux, &trained.grad_norm}) {
      add(*values);
    }
    add(trained.routing);
    add(trained.final_eval);
  }
  void add(const GoldenGeneration& generation) {
    add(generation.tokens);
    add(generation.smallest_margin);
  }
  std::int64_t value() const { return sum_; }

 private:
  std::uint32_t sum_ = 0;
};

}  // namespace

void check_same_on_all_ranks(ProcessGroup& group, const GoldenResults& results) {
  Checksum sum;
  sum.add(results.batch);
  sum.add(results.generations);
  if (results.packed) sum.add(*results.packed);
  sum.add(results.alone);
  sum.add(results.variants);
  const std::vector<std::int64_t> own = {sum.value()};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  all_gather<std::int64_t>(group, own, all, {.label = "golden results"});
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check(all[rank] == all[0], "check_golden: all ranks must have the same results, got others on ",
          "rank ", rank, " than on rank 0");
  }
}

}  // namespace moegrad::tools
