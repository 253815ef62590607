// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace moegrad {

/// What an exception says, by default the one that is being handled. Where memory ran out, which
/// std::bad_alloc alone does not say, that and how much is in use.
std::string message_of_exception(const std::exception_ptr& exception = std::current_exception());

}  // namespace moegrad
