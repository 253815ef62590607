// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad {

/// Lets this thread have its turn soon after it wakes up, also beside threads that compute (Note
/// [Threads that wake up]).
void be_scheduled_promptly();

}  // namespace moegrad
