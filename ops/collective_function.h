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

/// How the conjugate is called: ", backward" follows the label.
CollectiveOptions for_backward(CollectiveOptions options);

/// Counts what rank `own` sends to the others in an exchange, and receives from them: `sent` and
/// `received` elements, by rank.
void count_exchange(Counters& counters, std::span<const std::int64_t> sent,
                    std::span<const std::int64_t> received, int own, std::int64_t element_bytes);

}  // namespace moegrad::ops
