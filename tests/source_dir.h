// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace moegrad::test {

/// The root of the checkout that the tests were built from.
std::filesystem::path source_dir();

}  // namespace moegrad::test
