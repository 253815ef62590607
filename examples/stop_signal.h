// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad::examples {

/// From now on the first SIGINT or SIGTERM is noted instead of ending the program; a second one of
/// the same kind ends it.
void note_stop_signals();

/// The signal noted so far; 0 if none.
int stop_signal();

}  // namespace moegrad::examples
