// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <system_error>

#include "framework/runtime/error.h"

namespace moegrad {

/// The error to throw after std::thread's constructor has thrown `reason`: Error
/// `<subject>: needs <wanted> <what>, got <given>: <reason>`.
inline Error too_few_threads(const std::string& subject, const std::string& what,
                             std::size_t wanted, std::size_t given,
                             const std::system_error& reason) {
  return Error(subject + ": needs " + std::to_string(wanted) + " " + what + ", got " +
               std::to_string(given) + ": " + reason.code().message());
}

}  // namespace moegrad
