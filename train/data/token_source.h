// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/io/input_file.h"

namespace moegrad::training {

/// The type of token ids in a file: little-endian unsigned integers.
enum class TokenDtype : std::uint8_t { kUInt16, kUInt32 };

/// The most ids of a vocabulary that uint16 tells apart.
inline constexpr std::int64_t kMostUInt16Ids = 65536;

/// The tokens of a text, which is kept in memory, or of a tokenized file, which is read when tokens
/// are asked for. Error if the file has changed meanwhile (InputFile).
class TokenSource {
 public:
  /// The bytes of a text file (vocabulary 256), or of the King James text if `path` is empty. Error
  /// if it is not a readable file, ValueError if it is empty.
  static TokenSource text_file(const std::string& path);
  /// The bytes of `text`, called `name` in messages. ValueError if it is empty.
  static TokenSource text(std::string text, const std::string& name);
  /// Note [Tokenized files]
  /// One id after the other, without any header. A special id ends each document, including the
  /// last one. In Python:
  ///
  ///     ids = [i for text in texts for i in (*tokenizer.encode(text), end_of_document)]
  ///     assert max(ids) < 1 << 16  # "<u2" below would keep the rest of a division by 65536
  ///     numpy.array(ids).astype("<u2").tofile("train.bin")  # or "<u4"
  ///
  /// Without `dtype` the ids are uint16, which a vocabulary of more than kMostUInt16Ids does not
  /// allow. Ids that seem to be stored wider are then refused; where `dtype` is given, there is a
  /// warning.
  ///
  /// Error if it is not a readable file. ValueError if it is empty, if it begins with the header of
  /// NumPy or of llm.c, if its size is not a multiple of an id's, or for an id that is not below
  /// `vocab_size`.
  static TokenSource tokenized_file(const std::string& path, std::optional<TokenDtype> dtype,
                                    std::int64_t vocab_size);

  /// Takes a file of one byte for each token, 0 for those that are no target, such as the tokens of
  /// a prompt. Error if it is not a readable file, ValueError if it has another size.
  void take_target_mask(const std::string& path);

  std::int64_t size() const { return size_; }
  std::int64_t operator[](std::int64_t index) const { return read(index, 1)[0]; }
  /// Tokens [first, first + count).
  std::vector<std::int64_t> read(std::int64_t first, std::int64_t count) const;

  /// Replaces those of the tokens from `first` on that are no targets by -100. No effect without a
  /// mask.
  void leave_out(std::int64_t first, std::span<std::int64_t> targets) const;

  bool is_text() const { return token_bytes_ == 1; }
  /// Ids are below this: 256 for a text, whose tokens are its bytes.
  std::int64_t vocab_size() const { return vocab_size_; }
  /// The text; only if is_text().
  std::string_view as_text() const;
  const std::string& name() const { return name_; }
  /// The name of its tokens.
  std::string_view unit() const { return is_text() ? "bytes" : "tokens"; }
  /// Size, type and checksum, and that of a mask.
  std::string describe() const;

 private:
  TokenSource(std::string name, std::int64_t token_bytes, std::int64_t vocab_size)
      : name_(std::move(name)), token_bytes_(token_bytes), vocab_size_(vocab_size) {}
  std::int64_t decode(std::span<const std::byte> bytes, std::int64_t index) const;

  std::string name_;
  std::int64_t token_bytes_;
  std::int64_t vocab_size_;
  std::int64_t size_ = 0;
  std::string text_;  // empty if there is a file
  std::optional<InputFile> file_;
  std::uint32_t checksum_ = 0;
  std::optional<InputFile> mask_;
  std::uint32_t mask_checksum_ = 0;
};

}  // namespace moegrad::training
