// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "framework/distributed/process_group.h"
#include "framework/tensor/tensor.h"
#include "ops/routing.h"

namespace moegrad::ops {

/// permute_rows, then all_to_all: each of the S ranks gets the rows for an S-th of `plan.sent`'s
/// experts. Those that arrive are sorted by expert, then source, which means the order of ranks:
///
///     sent[r, :] = x[slot_of_row[r] / K, :]        x: [T, H]   sent: [R, H]   result: [M, H]
///
/// A rank may bring the rows of several sources of `plan.received`, one after the other.
///
/// Where ranks are threads, the bytes go from x to their places in the other ranks' results without
/// a copy in between, unless x is not contiguous or a row has less than 64 bytes. The gradient of a
/// token is the sum of its rows' gradients, which come back, added in the order of its slots. One
/// thread of the rank, the backend's, sends, receives and adds.
///
/// A collective, as those of ops/collectives.h: all ranks of the group call it, also with no
/// tokens, and run the same backward. x is float32, float64 or bfloat16, which travels as it is; a
/// sum of bfloat16 is made in float32 and rounded once. ValueError for a null group and a
/// plan whose parts contradict each other or that S ranks cannot divide, ShapeError for an x that
/// does not fit it; if ranks disagree on how many elements one sends to another, CollectiveError.
Tensor dispatch_rows(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                     const RowPlan& plan, const CollectiveOptions& options = {});

/// The reverse: the rows [M, H] go back, and each token is the sum of its K rows, added in the
/// order of its slots, [T, H]. In backward each row's gradient is that of its token. Errors as
/// above.
Tensor combine_rows(const std::shared_ptr<ProcessGroup>& group, const Tensor& rows,
                    const RowPlan& plan, const CollectiveOptions& options = {});

}  // namespace moegrad::ops
