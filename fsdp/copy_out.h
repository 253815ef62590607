// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/layout.h"
#include "fsdp/flat_layout.h"

namespace moegrad::fsdp {

/// Where the copy-out puts one gathered parameter.
struct CopyOutTarget {
  std::byte* data = nullptr;
  Layout layout = Layout::kND;
  NzBlocks blocks;     // of an NZ target
  NzPairs pairs = {};  // of one of bfloat16
};

/// Distributes the gathered slices of all ranks over the parameters of a group: the strategy that
/// Policy::copy_out names.
class CopyOut {
 public:
  virtual ~CopyOut() = default;
  /// Writes targets[i] whole, padding included, from what layout.entries[i] says of slices[r], the
  /// slice of rank r. The slices hold elements of `wire`, the targets elements of `dtype`.
  ///
  /// The slices are the peers' shards where they lie, valid until run returns. It is called on the
  /// communication thread, or on the compute thread where one rank holds everything, and by several
  /// ranks and groups at the same time.
  virtual void run(const FlatLayout& layout, PeerSpans slices, Dtype wire, Dtype dtype,
                   const std::vector<CopyOutTarget>& targets) const = 0;
};

/// A plain split (split_with_sizes_copy) for row-major targets and slice_to_nz for FRACTAL_NZ ones,
/// where the copy that has to happen anyway is the packing. bfloat16 that travelled is widened, or
/// float32 rounded, as the target needs.
std::shared_ptr<const CopyOut> make_split_with_slice_to_nz();

}  // namespace moegrad::fsdp
