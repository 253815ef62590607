// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/io/atomic_file.h"
#include "framework/io/safetensors_format.h"
#include "framework/io/safetensors_header.h"

namespace moegrad {

/// Writes a safetensors file piece by piece, in any order, without holding it in memory. As in the
/// reference implementation the tensors are laid out by falling alignment of their dtype, then by
/// name.
///
/// The file appears under its name when finish() has succeeded (see AtomicFile). Until then, and
/// after a failure, an earlier file of that name stays as it was, also for programs that have
/// mapped it. Not for use by several threads at once.
class SafetensorsWriter {
 public:
  /// Ignores `begin` and `end` of the entries. SafetensorsError for what Note [safetensors] does
  /// not allow.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata = {});

  /// The entries in the order of the file, with `begin` and `end`.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }

  /// Writes `bytes` at `offset` within the tensor. SafetensorsError if there is no such tensor, if
  /// the bytes reach past its end, or if a byte of that range has been written before.
  void write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes);

  /// Makes the file durable and gives it its name; SafetensorsError, and no file, unless every byte
  /// of every tensor has been written.
  void finish();

 private:
  void note_written(const SafetensorsEntry& entry, std::uint64_t begin, std::uint64_t end);

  std::string path_;
  AtomicFile file_;
  SafetensorsHeader header_;
  std::uint64_t data_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> written_;  // disjoint ranges of the data: begin -> end
};

}  // namespace moegrad
