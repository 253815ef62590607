// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <new>
#include <string>

namespace moegrad {

/// The system did not give memory: a std::bad_alloc that says how much was requested, and for what.
class OutOfMemoryError : public std::bad_alloc {
 public:
  explicit OutOfMemoryError(const std::string& message)
      : message_(std::make_shared<const std::string>(message)) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // an exception's copies must not throw
};

}  // namespace moegrad
