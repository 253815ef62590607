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
  NzBlocks blocks;  // of an NZ target
};

/// Distributes the gathered slices of all ranks over the parameters of a group. It runs on the
/// communication thread, reads the peers' shards in place, and widens values that travelled as
/// bfloat16. It writes each parameter in the layout that its descriptor asks for. For a FRACTAL_NZ
/// weight, this copy, which is necessary anyway, is the packing.
class CopyOut {
 public:
  virtual ~CopyOut() = default;
  virtual void run(const FlatLayout& layout, PeerSpans slices, Dtype wire, Dtype dtype,
                   const std::vector<CopyOutTarget>& targets) const = 0;
};

/// Row-major targets only (split_with_sizes_copy).
std::unique_ptr<CopyOut> make_plain_split();
/// slice_to_nz for the NZ targets, a plain split for the others.
std::unique_ptr<CopyOut> make_split_with_slice_to_nz();

}  // namespace moegrad::fsdp
