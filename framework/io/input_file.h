// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace moegrad {

/// What may happen to a file while it is read.
enum class InputChanges : std::uint8_t {
  kNone,
  kGrowth,  // of a log: the bytes that it had when it was opened are read
};

/// A regular file that is read piece by piece. It is not mapped, so the program survives if another
/// program cuts the file short: that, and a file that is rewritten in place, is an error here. A
/// file that is removed or replaced meanwhile stays as it was opened. Any thread may read.
class InputFile {
 public:
  /// Throws Error `<subject>: <path>: must be a readable regular file, got <reason>`.
  InputFile(const std::filesystem::path& path, const std::string& subject,
            InputChanges allowed = InputChanges::kNone);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  std::int64_t size() const { return size_; }
  /// Fills `bytes` from `offset` on; the whole range must be within the file. Throws Error
  /// `<subject>: <path>: must not change while it is read, got <what>`.
  void read(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  void check_unchanged() const;

  std::filesystem::path path_;
  std::string subject_;
  InputChanges allowed_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
  std::int64_t changed_seconds_ = 0, changed_nanoseconds_ = 0;  // time of the last write
};

/// The whole contents of such a file. ValueError
/// `<subject>: <path>: must be of at most <most> bytes, got <size>`.
std::string read_input_file(const std::filesystem::path& path, const std::string& subject,
                            std::int64_t most, InputChanges allowed = InputChanges::kNone);

}  // namespace moegrad
