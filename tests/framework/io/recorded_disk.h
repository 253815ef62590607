// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moegrad::test {

/// What is left of operations that no fsync has made durable when the power fails: POSIX promises
/// nothing.
enum class Left : std::uint8_t {
  kNothing,  // as at the last fsync of each file and folder
  kNames,    // folders are as they were, files as at their last fsync
  kSome      // of each, a random part
};

/// While in scope, records what this program does to the files below `base`, so that the states in
/// which a disk may be after a loss of power can be made. One at a time.
class RecordedDisk {
 public:
  /// `base` is an empty folder.
  explicit RecordedDisk(std::filesystem::path base);
  ~RecordedDisk();
  RecordedDisk(const RecordedDisk&) = delete;
  RecordedDisk& operator=(const RecordedDisk&) = delete;

  /// Operations so far.
  std::size_t count() const { return operations_.size(); }
  /// Makes in the empty folder `target` what is left of `base` after the first `operations`.
  void restore(std::size_t operations, Left left, std::uint64_t seed,
               const std::filesystem::path& target) const;

  // --- for the replaced functions (watched_calls.cpp), after success
  static RecordedDisk* current();
  void made_folder(const std::filesystem::path& path);
  void wrote(const std::filesystem::path& path, std::size_t offset, std::string_view bytes);
  void flushed(const std::filesystem::path& path);
  void renamed(const std::filesystem::path& from, const std::filesystem::path& to);
  void linked(const std::filesystem::path& path, std::string_view target);
  void removed(const std::filesystem::path& path);

 private:
  enum class Kind : std::uint8_t { kFolder, kWrite, kFlush, kRename, kLink, kRemove };
  struct Operation {
    Kind kind;
    std::filesystem::path path;        // relative to base
    std::filesystem::path other = {};  // of a rename
    std::string bytes = {};            // written, or a link's target
    std::size_t offset = 0;
  };
  class Disk;

  void record(Operation operation);

  std::filesystem::path base_;
  std::vector<Operation> operations_;
};

}  // namespace moegrad::test
