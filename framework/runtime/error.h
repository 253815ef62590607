// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <sstream>
#include <stdexcept>
#include <string>

namespace moegrad {

/// Base of everything moegrad throws. A message has the form
/// `op: what is required, with the numbers, got what`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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

/// An argument out of its range: a token id, a count, an option.
class ValueError : public Error {
 public:
  using Error::Error;
};

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
