// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moegrad {

/// What the exception that is being handled says. Where memory ran out, which std::bad_alloc alone
/// does not say, that and how much is in use.
std::string message_of_exception();

}  // namespace moegrad
