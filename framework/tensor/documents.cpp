// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/documents.h"

#include <utility>

#include "framework/runtime/error.h"

namespace moegrad {

Documents::Documents(std::vector<std::int64_t> offsets) : offsets_(std::move(offsets)) {
  check<ValueError>(!offsets_.empty(), "Documents: offsets must begin at 0, got none");
  check<ValueError>(offsets_.front() == 0, "Documents: offsets must begin at 0, got ",
                    offsets_.front());
  for (std::size_t i = 1; i < offsets_.size(); ++i) {
    check<ValueError>(offsets_[i - 1] <= offsets_[i], "Documents: offsets must not decrease, got ",
                      offsets_[i], " after ", offsets_[i - 1], " at position ", i);
  }
}

Documents Documents::of_lengths(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    check<ValueError>(lengths[d] >= 0, "Documents: lengths must not be negative, got ", lengths[d],
                      " for document ", d);
    offsets.push_back(offsets.back() + lengths[d]);
  }
  return Documents(std::move(offsets));
}

Tensor Documents::positions() const {
  Tensor positions = Tensor::empty({tokens()}, Dtype::kInt64);
  auto* position = positions.mutable_data<std::int64_t>().data();
  for (std::size_t d = 0; d + 1 < offsets_.size(); ++d) {
    for (std::int64_t i = 0; i < offsets_[d + 1] - offsets_[d]; ++i) *position++ = i;
  }
  return positions;
}

}  // namespace moegrad
