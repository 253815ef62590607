// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad {

/// Ends the process with _exit(1) in two seconds, whatever holds up the calling thread until then:
/// a full pipe perhaps, or a lock that a stuck thread holds.
void exit_soon();

}  // namespace moegrad
