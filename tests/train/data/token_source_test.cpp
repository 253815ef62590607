// SPDX-License-Identifier: Apache-2.0
#include "train/data/token_source.h"

#include <fstream>
#include <vector>

#include "tests/testing.h"

namespace moegrad::training::token_source_test {
namespace {

using test::message_of;

std::string written(const std::string& name, const std::string& bytes) {
  const auto path = ::testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<std::int64_t> all(const TokenSource& source) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < source.size(); ++i) tokens.push_back(source[i]);
  return tokens;
}

TEST(TokenSource, ReadsATextByBytesFromAFileAndFromMemory) {
  const std::string bytes = "a\xff\n";
  const auto file = TokenSource::text_file(written("bytes.txt", bytes));
  const auto held = TokenSource::text(bytes, "three");
  EXPECT_EQ(all(file), (std::vector<std::int64_t>{97, 255, 10}));
  EXPECT_EQ(all(held), all(file));
  EXPECT_EQ(file.as_text(), bytes);
  EXPECT_EQ(file.describe(), held.describe());
  EXPECT_EQ(TokenSource::text("123456789", "check").describe(), "9 bytes with CRC-32C 3808858755");
}

TEST(TokenSource, StaysWholeWhenMoved) {
  auto held = TokenSource::text("ab", "two");
  const auto moved = std::move(held);
  EXPECT_EQ(all(moved), (std::vector<std::int64_t>{97, 98}));
}

TEST(TokenSource, ReadsLittleEndianIdsOfTwoAndOfFourBytes) {
  const auto path = written("ids.bin", std::string("\x01\x02\xff\x00\x00\x00\x00\x80", 8));
  const auto two = TokenSource::tokenized_file(path, TokenDtype::kUInt16, 65536);
  EXPECT_EQ(all(two), (std::vector<std::int64_t>{0x201, 0xff, 0, 0x8000}));
  EXPECT_FALSE(two.is_text());
  const auto four = TokenSource::tokenized_file(path, TokenDtype::kUInt32, 1LL << 32);
  EXPECT_EQ(all(four), (std::vector<std::int64_t>{0xff0201, 0x80000000}));
  EXPECT_TRUE(four.describe().starts_with("2 ids of 4 bytes with CRC-32C "));
  EXPECT_NE(two.describe(), four.describe());
}

TEST(TokenSource, RefusesWhatHoldsNoTokens) {
  const auto tokenized = [](const std::string& path, TokenDtype dtype = TokenDtype::kUInt16) {
    return message_of<Error>([&] { TokenSource::tokenized_file(path, dtype, 300); });
  };
  const auto folder = ::testing::TempDir();
  EXPECT_EQ(message_of<Error>([&] { TokenSource::text_file(folder); }),
            "text: " + folder + ": must be a readable regular file, got a folder");
  EXPECT_EQ(tokenized("/nowhere/a.bin"),
            "data: /nowhere/a.bin: must be a readable regular file, got No such file or directory");
  const auto empty = written("empty.bin", "");
  EXPECT_EQ(tokenized(empty), "data: '" + empty + "' is empty");
  EXPECT_EQ(message_of<ValueError>([&] { TokenSource::text_file(empty); }),
            "text: '" + empty + "' is empty");
  EXPECT_EQ(message_of<ValueError>([&] { TokenSource::text("", "nothing"); }),
            "text: 'nothing' is empty");
  const auto odd = written("odd.bin", "abc");
  EXPECT_EQ(tokenized(odd),
            "data: '" + odd + "' must be a multiple of 2 bytes long, the size of an id, got 3");
  const auto six = written("six.bin", "abcdef");
  EXPECT_EQ(tokenized(six, TokenDtype::kUInt32),
            "data: '" + six + "' must be a multiple of 4 bytes long, the size of an id, got 6");
  const auto large = written("large.bin", std::string("\x2b\x01\x2c\x01", 4));
  EXPECT_EQ(tokenized(large), "data: ids in '" + large +
                                  "' must be below the model's vocab_size 300, got 300 at "
                                  "position 1");
}

TEST(TokenSource, GivesIdsNoText) {
  const auto path = written("two.bin", "ab");
  const auto ids = TokenSource::tokenized_file(path, TokenDtype::kUInt16, 65536);
  EXPECT_EQ(message_of<Error>([&] { ids.as_text(); }),
            "data: '" + path + "' holds token ids, no text");
}

}  // namespace
}  // namespace moegrad::training::token_source_test
