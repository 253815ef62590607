// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/schedule/action.h"

namespace moegrad::plan {

// Each function makes the rows of p ranks for m micro-batches, of F, I, W, B and pairs alone (Note
// [Pipeline schedules]). Bubbles and peaks are those of stages that all take F, I and W, where B is
// I + W and a message takes no time: a rank's bubble is the time in which it does nothing, its peak
// the most activations of a stage's micro-batch that it holds at once. A peak is given where it is
// that of every m that is large enough.
//
// All throw ValueError `<name>: <what is required>, got <what>`.

/// All forwards, then all backwards. Bubble (p - 1)(F + B), peak m.
///
/// Reference: Huang et al., 2019, https://arxiv.org/abs/1811.06965
Schedule gpipe(int ranks, int micro_batches);

/// Rank r makes min(p - r - 1, m) forwards, then a forward and a backward in turn, then the
/// remaining backwards. Bubble (p - 1)(F + B), peak p - r.
///
/// Reference: PipeDream-Flush, Narayanan et al., 2021, https://arxiv.org/abs/2006.09503
Schedule one_f_one_b(int ranks, int micro_batches);

/// 1F1B over v stages per rank: stage s is on rank s mod p. Micro-batches go through the stages in
/// groups of g. Bubble (p - 1)(F + B), where a stage is a v-th of what it is in 1F1B; peak
/// 2 (p - r - 1) + (v - 1) g + 1. Requires p <= g <= m, and a last group that is as large or of p
/// at least.
///
/// Reference: Narayanan et al., 2021, https://arxiv.org/abs/2104.04473
Schedule interleaved_1f1b(int ranks, int micro_batches, int stages_per_rank, int group);
/// The same in groups of p.
Schedule interleaved_1f1b(int ranks, int micro_batches, int stages_per_rank);

/// 1F1B whose backward is cut in two: rank r keeps up to r weight halves for later, and runs the
/// oldest first, so that gradients are summed in the order of 1F1B. Bubble (p - 1)(F + I - W) if W
/// is at most F and I, a third of 1F1B's if F = I = W; peak p on each rank. Requires m >= p.
///
/// Reference: Qi et al., 2023, https://arxiv.org/abs/2401.10241, schedule ZB-H1
Schedule zb_h1(int ranks, int micro_batches);

/// Two stages per rank in a V: r and 2p - 1 - r. No bubble but p - 1 units at the start and end if
/// F = I = W = 1 and m >= 3p / 2; peak 2p at most.
///
/// Reference: Qi et al., 2024, https://arxiv.org/abs/2405.15362, schedule V-ZB; the order of
/// actions is PyTorch's ZBVZeroBubble
Schedule zbv(int ranks, int micro_batches);

/// Two stages per rank in a V, as zbv(); a forward of one stage and a backward of the other run as
/// a pair. Bubble (p - 1)(F&B + B - 3W) if F = I = W and F&B, which a pair takes, is F + B. Peak
/// 2p + 1. Requires m >= 2p.
///
/// Reference: https://github.com/deepseek-ai/DualPipe, dualpipev.py
Schedule dual_pipe_v(int ranks, int micro_batches);

/// Two copies of each of p stages: rank r has stages r and p - 1 - r. The first half of the
/// micro-batches goes through the ranks upwards, the second half downwards. Bubble
/// (p/2 - 1)(F&B + B - 3W) if the same holds as for dual_pipe_v(); peak p + 1. Requires even p and
/// m, m >= 2p.
///
/// Reference: https://github.com/deepseek-ai/DualPipe, dualpipe.py
Schedule dual_pipe(int ranks, int micro_batches);

/// What make_schedule() is asked for.
struct GeneratorOptions {
  int ranks = 4;
  int micro_batches = 8;
  int stages_per_rank = 0;  // of Interleaved1F1B, where 0 means 2; 0 for all others
  int group = 0;  // of Interleaved1F1B: micro-batches of a group, 0 means as many as ranks; 0 for
                  // all others
};

/// GPipe, 1F1B, Interleaved1F1B, ZB-H1, ZBVZeroBubble, DualPipeV, DualPipe. The names are PyTorch's
/// where it has the schedule.
std::vector<std::string> generator_names();

/// The schedule of this name, in upper or lower case.
Schedule make_schedule(std::string_view name, const GeneratorOptions& options);

}  // namespace moegrad::plan
