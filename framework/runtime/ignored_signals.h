// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad {

/// Ignores the signals again that were ignored when the program was started, as SIGHUP is under
/// nohup.
///
/// Note [Signals that were ignored]
/// A shell or nohup may have a program ignore a signal. A library that puts a handler there as it
/// is loaded takes that back before main() could ask: UCX, to which Open MPI 5 links, so takes
/// SIGHUP. The state is therefore read before the constructors of libraries run (.preinit_array of
/// the program).
void restore_ignored_signals();

}  // namespace moegrad
