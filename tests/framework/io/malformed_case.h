// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "framework/io/safetensors.h"
#include "tests/framework/io/files.h"

namespace moegrad::test {

/// A file that must be refused, and how.
struct MalformedCase {
  std::string name;  // of the test
  std::string bytes;
  SafetensorsError::Kind kind;
  std::string message;  // after "safetensors: <path>: "
};

/// Shown by GoogleTest, instead of the bytes.
inline void PrintTo(const MalformedCase& malformed, std::ostream* out) { *out << malformed.name; }

inline void expect_refused(const MalformedCase& malformed) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  write_file(path, malformed.bytes);
  try {
    const SafetensorsFile file(path);
    FAIL() << "accepted";
  } catch (const SafetensorsError& error) {
    EXPECT_EQ(error.what(), "safetensors: " + path.string() + ": " + malformed.message);
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(malformed.kind));
  }
}

}  // namespace moegrad::test
