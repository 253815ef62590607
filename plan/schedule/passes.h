// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plan/schedule/action.h"

namespace moegrad::plan {

// Each pass takes a schedule and returns it with more actions (Note [Pipeline schedules]). They are
// applied in this order, of which each may be left out:
//
//     merge_backward    add_recompute    add_unshard    add_reduce_grad    add_transfers

/// Makes one B of an I and the W of the same stage and micro-batch that follows it at once, over
/// idle cells, too; all other idle cells go.
Schedule merge_backward(const Schedule& schedule);

/// Adds R before I or B of the stages given: their forwards keep the stage's input alone. For a
/// pair, R comes before it. R needs nothing of other ranks, so the rank makes it while it would
/// wait for the gradient. ValueError unless the stages are there, and if there are transfers, since
/// R would wait for them.
Schedule add_recompute(const Schedule& schedule, const std::vector<int>& stages);

/// Adds UNSHARD and RESHARD, so that at each moment the parameters of at most `most_gathered`
/// stages are gathered on a rank: those that come next. A stage that is among these stays gathered
/// from one use to the next. As PyTorch's _add_unshard_reshard, whose max_active_stages is 3 by
/// default. ValueError unless most_gathered is 1 at least, or 2 if there are pairs, and if there
/// are transfers, since UNSHARD would wait for them.
Schedule add_unshard(const Schedule& schedule, int most_gathered);

/// Adds REDUCE_GRAD after each stage's last W or B on its rank.
Schedule add_reduce_grad(const Schedule& schedule);

/// Adds SEND right after what makes a message that goes to another rank, and its RECV, at which the
/// rank waits, right before the cell that needs it. ValueError if the schedule has transfers.
Schedule add_transfers(const Schedule& schedule);

/// The same, but each RECV goes where its rank is when the message is sent, if the ranks do a cell
/// each in turn and pass when they must wait: PyTorch's _add_send_recv. Messages between two ranks
/// are then received in the order in which they are sent, so that they need no names; but a rank
/// may wait for what it does not need yet. ValueError also if ranks wait for each other.
Schedule add_transfers_when_sent(const Schedule& schedule);

}  // namespace moegrad::plan
