// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/io/safetensors_format.h"

namespace moegrad {

/// The contents of a header that has been checked against its file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by offset
  std::map<std::string, std::string> metadata;
  std::vector<std::uint32_t> by_name;  // indices into entries, in the order of their names
  std::uint64_t data_begin = 0;        // 8 + N

  /// Null if there is no tensor of that name.
  const SafetensorsEntry* find(std::string_view name) const;
};

/// Reads the header of a whole file and checks all rules of Note [safetensors]. Does not touch the
/// data.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& path);
/// The same from the N bytes of the header alone, for a file with `data_bytes` after them.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& path);

/// The padded header for tensors in this order and with these offsets. It is byte for byte what the
/// reference implementation writes. Checks nothing.
std::string format_safetensors_header(const std::vector<SafetensorsEntry>& entries,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace moegrad
