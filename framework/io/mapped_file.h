// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace moegrad {

/// A regular file as read-only memory. It stays as it was opened if the file is removed or replaced
/// meanwhile.
class MappedFile {
 public:
  /// Throws Error `<subject>: <path>: must be a readable regular file, got <reason>`.
  MappedFile(const std::filesystem::path& path, const std::string& subject);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace moegrad
