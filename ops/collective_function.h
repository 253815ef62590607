// SPDX-License-Identifier: Apache-2.0
#pragma once

// What Functions that are collectives have in common.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "framework/distributed/process_group.h"
#include "framework/runtime/counters.h"
#include "framework/tensor/tensor.h"

namespace moegrad::ops {

/// Issues a collective, which fills `output`, and returns `output` at once (Note [Bytes that are
/// under way]). Until the collective ends, `input`, if it is defined, is kept, and a write into it
/// waits. `counters`, if it is not null, counts the time spent waiting for the output
/// (exchange_wait).
Tensor issue_into(const Tensor& input, Tensor output, const std::function<WorkPtr()>& issue,
                  const std::shared_ptr<Counters>& counters = nullptr);

/// ValueError for a null group, DtypeError for an x that the collective `op` does not take:
/// bfloat16 may be moved, but not summed.
void check_collective(std::string_view op, const std::shared_ptr<ProcessGroup>& group,
                      const Tensor& x, bool sums = false);

/// The contiguous x of all ranks side by side along dimension `dim`.
Tensor gather_parts(ProcessGroup& group, const Tensor& x, std::int64_t dim,
                    const CollectiveOptions& options);
/// The sum over the ranks of part rank() of the rows of their contiguous x.
Tensor scatter_sum(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options);
/// `x`, the only handle on its bytes, with the sum over the ranks in it.
Tensor sum_in_place(ProcessGroup& group, const Tensor& x, const CollectiveOptions& options);

/// How tile i of an op is issued. Tiles take turns in two queues, so that one is on its way while
/// the ranks add or copy the other.
CollectiveOptions for_tile(CollectiveOptions options, std::int64_t i);
/// How the conjugate is called: ", backward" follows the label.
CollectiveOptions for_backward(CollectiveOptions options);

/// Counts what rank `own` sends to the others in an exchange, and receives from them: `sent` and
/// `received` elements, by rank.
void count_exchange(Counters& counters, std::span<const std::int64_t> sent,
                    std::span<const std::int64_t> received, int own, std::int64_t element_bytes);

}  // namespace moegrad::ops
