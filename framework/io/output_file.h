// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace moegrad {

/// A file that is written as a whole. Until finish(), an earlier file of that name stays as it is.
/// A regular file also stays as it is if finish() fails (AtomicFile). The target of a link, a
/// device or a pipe is written in place.
class OutputFile final : public std::ostringstream {
 public:
  /// Refuses a path that cannot be written, before there is anything to write. The constructor and
  /// finish() throw ValueError
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
  int descriptor_ = -1;  // of a file that is written in place
};

/// Counts the writes that a log of a run has lost. The first loss is reported at once, because the
/// run goes on; the number is reported at the end.
class LostWrites {
 public:
  /// `option` names the log, as "--metrics".
  explicit LostWrites(std::string option) : option_(std::move(option)) {}

  void record(const std::string& reason);
  /// Reports how many writes were lost. Returns false if any were.
  bool report() const;

 private:
  std::string option_;
  std::int64_t lost_ = 0;
};

/// A file of lines that a run appends to. No other run may write to it meanwhile. Links are
/// followed. A device or a pipe is written and never replaced. Other programs may cut, empty or
/// rename the file meanwhile. If they remove it, lines are lost. For one thread at a time.
class LineFile {
 public:
  /// ValueError if it cannot be written or another program writes it:
  ///
  ///     <option>: cannot write file '<path>': <reason>
  LineFile(const std::string& path, std::string option);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  /// Renames the file to its path with a number appended. Begins a new file with the same
  /// permissions and the first `bytes` bytes of the old one. Does nothing if the file is empty.
  void set_aside(std::int64_t bytes = 0);
  /// Cuts the file to its first `bytes` bytes.
  void cut(std::int64_t bytes);
  /// Writes a line feed, for a last line that has none.
  void end_line();
  /// Writes `line` and a line feed, as a whole or not at all.
  void write(std::string_view line);
  /// LostWrites::report() for write().
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
  bool empty_ = true;  // whether it was empty when it was opened
};

}  // namespace moegrad
