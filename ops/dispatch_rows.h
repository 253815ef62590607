// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "ops/routing.h"

namespace moegrad::ops {

/// Rows [first, first + count) of a tensor.
struct RowRun {
  std::int64_t first = 0, count = 0;
};

/// How rows get from the tokens of each of S ranks to the ranks that compute them: permute_rows,
/// then all_to_all, then an order there.
struct DispatchPlan {
  /// From the T tokens of this rank to the R rows that it sends, which are sorted by the rank that
  /// they go to.
  Permutation order;
  std::vector<std::int64_t> sent, received;  // [S]: rows by rank; R and M together
  /// Where the rows are put that come from rank 0, then those of rank 1, and so on: runs of rows
  /// that together are [0, M), each once.
  std::vector<RowRun> places;
};

/// Sends each token's K rows, and puts those that come from all ranks at their places:
///
///     sent[r, :] = x[slot_of_row[r] / K, :]        x: [T, H]   sent: [R, H]   result: [M, H]
///
/// Where ranks are threads, the bytes go from x to their places in the other ranks' results without
/// a copy in between, unless x is not contiguous or a row has less than 64 bytes. The gradient of a
/// token is the sum of its rows' gradients, which come back, added in the order of its slots. One
/// thread of the rank, the backend's, sends, receives and adds.
///
/// A collective, as those of ops/collectives.h: all ranks of the group call it, also with no
/// tokens, and run the same backward. x is float32 or float64. ValueError for a null group and a
/// plan whose parts contradict each other, ShapeError for an x that does not fit it; if ranks
/// disagree on how many elements one sends to another, CollectiveError.
Tensor dispatch_rows(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                     const DispatchPlan& plan, const CollectiveOptions& options = {});

/// The reverse: the rows [M, H] go back, and each token is the sum of its K rows, added in the
/// order of its slots, [T, H]. In backward each row's gradient is that of its token. Errors as
/// above.
Tensor combine_rows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const DispatchPlan& plan, const CollectiveOptions& options = {});

}  // namespace moegrad::ops
