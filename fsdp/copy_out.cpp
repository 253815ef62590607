// SPDX-License-Identifier: Apache-2.0
#include "fsdp/copy_out.h"

#include <cstring>
#include <type_traits>

#include "framework/distributed/shard_spec.h"
#include "ops/kernels/bf16/blocks.h"
#include "ops/kernels/nz.h"

namespace moegrad::fsdp {
namespace {

template <class Source, class T>
void copy_rows(const Source* source, std::int64_t n, T* target) {
  if constexpr (std::is_same_v<Source, T>) {
    std::memcpy(target, source, static_cast<std::size_t>(n) * sizeof(T));
  } else {
    for (std::int64_t i = 0; i < n; ++i) target[i] = T(static_cast<float>(source[i]));
  }
}

// For each rank, calls body(the rank's range of the cut dimension, its elements).
template <class Source, class Body>
void for_each_rank(const FlatLayout& layout, const FlatEntry& entry, PeerSpans slices,
                   const Body& body) {
  for (int rank = 0; rank < layout.world_size; ++rank) {
    const auto* slice =
        reinterpret_cast<const Source*>(slices[static_cast<std::size_t>(rank)].data());
    body(shard_range(entry.extent, layout.world_size, rank), slice + entry.offset);
  }
}

template <class Source, class T>
void split_to_nd(const FlatLayout& layout, const FlatEntry& entry, PeerSpans slices, T* target) {
  for_each_rank<Source>(layout, entry, slices, [&](const ShardRange& range, const Source* source) {
    for (std::int64_t i = 0; i < entry.outer; ++i) {
      copy_rows(source + i * range.size() * entry.inner, range.size() * entry.inner,
                target + (i * entry.extent + range.begin) * entry.inner);
    }
  });
}

// An NZ parameter is a matrix. It is cut along its rows or along its columns.
template <class Source, class T>
void split_to_nz(const FlatLayout& layout, const FlatEntry& entry, PeerSpans slices,
                 const NzBlocks& blocks, T* target) {
  const bool by_rows = entry.extent == blocks.batch * blocks.k && entry.inner == blocks.n;
  for_each_rank<Source>(layout, entry, slices, [&](const ShardRange& range, const Source* source) {
    if (by_rows) {
      kernels::slice_rows_to_nz<Source, T>(source, entry.inner, range.begin, range.size(), blocks,
                                           target);
    } else {
      kernels::slice_columns_to_nz<Source, T>(source, range.begin, range.size(), blocks, target);
    }
  });
  kernels::nz_zero_padding<T>(blocks, target);
}

// The same for bfloat16, whose form is `pairs`.
template <class Source>
void split_to_pairs(const FlatLayout& layout, const FlatEntry& entry, PeerSpans slices,
                    const CopyOutTarget& to) {
  using namespace kernels::bf16;
  const auto& blocks = to.blocks;
  auto* const target = reinterpret_cast<BFloat16*>(to.data);
  const bool by_rows = entry.extent == blocks.batch * blocks.k && entry.inner == blocks.n;
  for_each_rank<Source>(layout, entry, slices, [&](const ShardRange& range, const Source* source) {
    if (by_rows) {
      slice_rows_to_pairs<Source>(source, entry.inner, range.begin, range.size(), blocks, to.pairs,
                                  target);
    } else {
      slice_columns_to_pairs<Source>(source, range.begin, range.size(), blocks, to.pairs, target);
    }
  });
  pairs_zero_padding(blocks, to.pairs, target);
}

template <class Body>
void dispatch_wire(Dtype wire, Dtype dtype, const Body& body) {
  if (dtype == Dtype::kBFloat16) {
    if (wire == dtype) return body.template operator()<BFloat16, BFloat16>();
    check<DtypeError>(wire == Dtype::kFloat32, "fully_shard: ", dtype,
                      " parameters can travel as float32, got ", wire);
    return body.template operator()<float, BFloat16>();
  }
  dispatch_floating(dtype, [&]<class T>() {
    if (wire == dtype) return body.template operator()<T, T>();
    check<DtypeError>(wire == Dtype::kBFloat16, "fully_shard: ", dtype,
                      " parameters can travel as bfloat16, got ", wire);
    body.template operator()<BFloat16, T>();
  });
}

class SplitWithSliceToNz final : public CopyOut {
 public:
  void run(const FlatLayout& layout, PeerSpans slices, Dtype wire, Dtype dtype,
           const std::vector<CopyOutTarget>& targets) const override {
    dispatch_wire(wire, dtype, [&]<class Source, class T>() {
      for (std::size_t i = 0; i < targets.size(); ++i) {
        auto* target = reinterpret_cast<T*>(targets[i].data);
        if (targets[i].layout == Layout::kNZ) {
          if constexpr (std::is_same_v<T, BFloat16>) {
            split_to_pairs<Source>(layout, layout.entries[i], slices, targets[i]);
          } else {
            split_to_nz<Source>(layout, layout.entries[i], slices, targets[i].blocks, target);
          }
        } else {
          split_to_nd<Source>(layout, layout.entries[i], slices, target);
        }
      }
    });
  }
};

}  // namespace

std::shared_ptr<const CopyOut> make_split_with_slice_to_nz() {
  return std::make_shared<const SplitWithSliceToNz>();
}

}  // namespace moegrad::fsdp
