// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace moegrad {

/// Base of everything moegrad throws, except OutOfMemoryError, which is a std::bad_alloc. A message
/// has the form `op: what is required, with the numbers, got what`.
///
/// An error that leaves the call of a module, or the backward of a Function that a module ran, ends
/// with the module's path, once: `; in module layers.3.mlp`. The outermost module has no path.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

  /// Adds `text` to the end of the message, for code that catches an error and rethrows it.
  void append(const std::string& text) {
    std::runtime_error::operator=(std::runtime_error(what() + text));
  }
  /// Appends the module's path unless it is empty or the message names a module already.
  void add_module(const std::string& path) {
    if (path.empty() || names_module_) return;
    append("; in module " + path);
    names_module_ = true;
  }

 private:
  bool names_module_ = false;
};

/// A default-constructed or moved-from Tensor where one with elements is required.
class UndefinedTensorError : public Error {
 public:
  using Error::Error;
};

/// A tensor of the wrong rank or size.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A tensor of the wrong element type.
class DtypeError : public Error {
 public:
  using Error::Error;
};

/// A FRACTAL_NZ tensor where a row-major one is required, or the reverse.
class LayoutError : public Error {
 public:
  using Error::Error;
};

/// The system did not give memory: a std::bad_alloc that says how much was requested, and for what.
class OutOfMemoryError : public std::bad_alloc {
 public:
  explicit OutOfMemoryError(const std::string& message)
      : message_(std::make_shared<const std::string>(message)) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // an exception's copies must not throw
};

/// An argument out of its range: a token id, a count, an option.
class ValueError : public Error {
 public:
  using Error::Error;
};

/// The error to throw after std::thread's constructor has thrown `reason`: Error
/// `<subject>: needs <wanted> <what>, got <given>: <reason>`.
inline Error too_few_threads(const std::string& subject, const std::string& what,
                             std::size_t wanted, std::size_t given,
                             const std::system_error& reason) {
  return Error(subject + ": needs " + std::to_string(wanted) + " " + what + ", got " +
               std::to_string(given) + ": " + reason.code().message());
}

/// Throws E unless `ok`. The parts are streamed into the message only on failure.
template <std::derived_from<Error> E = Error, class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    std::ostringstream message;
    (message << ... << parts);
    throw E(message.str());
  }
}

}  // namespace moegrad
