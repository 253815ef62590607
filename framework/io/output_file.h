// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace moegrad {

/// A file that is written as a whole. Until finish() an earlier file of that name stays as it is,
/// and a regular one where finish() fails as well (AtomicFile). What a link leads to, a device or a
/// pipe is written in place.
class OutputFile final : public std::ostringstream {
 public:
  /// Refuses what cannot be written before there is anything to write. This and finish() throw
  /// ValueError
  ///
  ///     cannot write file '<path>': <reason>
  explicit OutputFile(const std::string& path);
  ~OutputFile() override;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void finish();

 private:
  void write_in_place();
  [[noreturn]] void fail(const std::string& reason) const;

  std::string path_;
  int descriptor_ = -1;  // where it is written in place
};

/// Counts what a log of a run could not take. The first is said at once, for the run goes on; the
/// number at the end.
class LostWrites {
 public:
  /// `option` names the log, as "--metrics".
  explicit LostWrites(std::string option) : option_(std::move(option)) {}

  void note(const std::string& reason);
  /// Says how many were lost; false if any were.
  bool report() const;

 private:
  std::string option_;
  std::int64_t lost_ = 0;
};

/// A file of lines that a run adds to, which no other run may write meanwhile. Links are followed;
/// a device or a pipe is written and never replaced. Somebody else may cut, empty or rename the
/// file meanwhile; in one that is removed, lines are lost. For one thread at a time.
class LineFile {
 public:
  /// ValueError if it cannot be written or another program writes it:
  ///
  ///     <option>: cannot write file '<path>': <reason>
  LineFile(const std::string& path, std::string option);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// Keeps what the file contains under another name, the path with a number behind it, and begins
  /// a new one with the same permissions and its first `bytes` bytes. Does nothing if there is
  /// nothing to keep.
  void set_aside(std::int64_t bytes = 0);
  /// Leaves the first `bytes` bytes.
  void cut(std::int64_t bytes);
  /// Writes a line feed behind a last line that has none.
  void end_line();
  /// Writes `line` and a line feed, as a whole or not at all.
  void write(std::string_view line);
  /// LostWrites::report of write().
  bool report() const { return lost_.report(); }

 private:
  void open(int flags, unsigned mode);
  // The reason is errno.
  [[noreturn]] void fail() const;
  void append(std::string_view text);

  std::string path_;
  std::string option_;
  LostWrites lost_;
  int descriptor_ = -1;
  bool regular_ = false;
  bool empty_ = true;  // when it was opened
};

}  // namespace moegrad
