// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "plan/schedule/action.h"
#include "plan/schedule/simulate.h"

namespace moegrad::tools {

/// The figures of a schedule as text: sizes, the buffers that its transfers need, makespan, bubble
/// and peak of each rank, and with `critical_path` the actions of that path.
std::string schedule_report(const std::string& name, const plan::Schedule& schedule,
                            const plan::Simulation& simulation, bool critical_path);

}  // namespace moegrad::tools
