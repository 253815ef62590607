// SPDX-License-Identifier: Apache-2.0
#include "train/data/token_source.h"

#include <vector>

#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::training::token_source_test {
namespace {

using test::message_of;

std::string written(const std::string& name, const std::string& bytes) {
  static const test::TemporaryFolder folder;
  const auto path = folder / name;
  test::write_file(path, bytes);
  return path.string();
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

TEST(TokenSource, LeavesOutTargetsThatAMaskNames) {
  const auto path = written("masked.bin", std::string("\x01\0\x02\0\x03\0\x04\0", 8));
  const auto open = [&] { return TokenSource::tokenized_file(path, {}, 300); };
  auto tokens = open();
  std::vector<std::int64_t> targets = {2, 3, 4};
  tokens.leave_out(1, targets);
  EXPECT_EQ(targets, (std::vector<std::int64_t>{2, 3, 4}));
  tokens.take_target_mask(written("mask", std::string("\1\0\1\0", 4)));
  tokens.leave_out(1, targets);
  EXPECT_EQ(targets, (std::vector<std::int64_t>{-100, 3, -100}));
  EXPECT_EQ(all(tokens), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(tokens.describe(), open().describe() + ", target mask with CRC-32C 2256566536");
  const auto longer = written("longer", std::string(5, '\1'));
  EXPECT_EQ(message_of<ValueError>([&] { tokens.take_target_mask(longer); }),
            "target mask: '" + longer + "' must have a byte for each of the 4 tokens of '" + path +
                "', got 5");
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

TEST(TokenSource, KnowsWhatItsIdsAreBelow) {
  EXPECT_EQ(TokenSource::text("ab", "two").vocab_size(), 256);
  const auto path = written("below.bin", "ab");
  EXPECT_EQ(TokenSource::tokenized_file(path, {}, 50304).vocab_size(), 50304);
}

TEST(TokenSource, RefusesFilesThatBeginWithAHeader) {
  const auto refusal = [](const std::string& path, TokenDtype dtype = TokenDtype::kUInt16) {
    return message_of<ValueError>([&] { TokenSource::tokenized_file(path, dtype, 1LL << 32); });
  };
  const auto numpy = written("ids.npy", std::string("\x93NUMPY\x01\x00v\x00{'descr'", 18));
  const auto numpy_refused = "data: '" + numpy +
                             "' must be ids alone, got the header of a NumPy file; write them "
                             "with array.tofile(), not with numpy.save()";
  EXPECT_EQ(refusal(numpy), numpy_refused);
  EXPECT_EQ(refusal(numpy, TokenDtype::kUInt32), numpy_refused);

  const auto shard = [](std::int64_t magic, std::int64_t version, std::int64_t ids,
                        std::size_t bytes) {
    std::string file;
    for (const auto number : {magic, version, ids}) {
      for (int i = 0; i < 4; ++i) file += static_cast<char>(number >> 8 * i & 0xff);
    }
    for (std::size_t i = file.size(); i < bytes; ++i) file += static_cast<char>(1 + i % 7);
    return written("shard.bin", file);
  };
  const auto accepts = [](const std::string& path) {
    return TokenSource::tokenized_file(path, TokenDtype::kUInt16, 65536).size() > 0;
  };
  const auto gpt2 = shard(20240520, 1, 500, 2024);
  const auto llmc_refused = "data: '" + gpt2 +
                            "' must be ids alone, got the header of llm.c, 1024 bytes; leave it "
                            "out, as with tail -c +1025";
  EXPECT_EQ(refusal(gpt2), llmc_refused);
  EXPECT_EQ(refusal(shard(20240801, 7, 250, 2024), TokenDtype::kUInt32), llmc_refused);
  EXPECT_EQ(refusal(shard(20240520, 1, 0, 1024)), llmc_refused);
  // Each of the three numbers may be a pair of ids.
  EXPECT_TRUE(accepts(shard(20240520, 2, 500, 2024)));
  EXPECT_TRUE(accepts(shard(20240520, 1, 501, 2024)));
  EXPECT_TRUE(accepts(shard(20240521, 1, 500, 2024)));
  EXPECT_TRUE(accepts(shard(20240520, 1, 500, 12)));
}

/// `count` ids from 0 on, then 0 to 96 again and so on, each in `width` bytes.
std::string file_of_ids(std::int64_t count, int width, std::int64_t upper_part = 0) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = i % 97 + (i % 3 == 0 ? upper_part << 16 : 0);
    for (int j = 0; j < width; ++j) bytes += static_cast<char>(id >> 8 * j & 0xff);
  }
  return written("width.bin", bytes);
}

TEST(TokenSource, RefusesIdsThatAreStoredWiderUnlessTheirTypeIsGiven) {
  const auto refusal = [](const std::string& path) {
    return message_of<ValueError>([&] { TokenSource::tokenized_file(path, {}, 65536); });
  };
  const auto path = file_of_ids(128, 4);
  EXPECT_EQ(refusal(path), "data: ids in '" + path +
                               "' must be uint16, got 0 at every second position, as if each took "
                               "4 bytes; say which they are with --data-dtype uint32 or uint16");
  EXPECT_EQ(refusal(file_of_ids(128, 8)),
            "data: ids in '" + path +
                "' must be uint16, got 0 at every second position, as if each took 8 bytes; write "
                "them as uint16 or uint32");
  const auto warning = [&](TokenDtype dtype, std::int64_t vocab_size) {
    ::testing::internal::CaptureStderr();
    TokenSource::tokenized_file(path, dtype, vocab_size);
    const auto said = ::testing::internal::GetCapturedStderr();
    const auto begin = said.find("data: ");
    return begin == said.npos ? said : said.substr(begin);
  };
  file_of_ids(128, 4);
  EXPECT_EQ(warning(TokenDtype::kUInt16, 300),
            "data: ids in '" + path +
                "' must be uint16 as --data-dtype says, got 0 at every second position, as if each "
                "took 4 bytes\n");
  EXPECT_EQ(warning(TokenDtype::kUInt32, 300), "");
  file_of_ids(300, 8);
  EXPECT_EQ(warning(TokenDtype::kUInt32, 151936),
            "data: ids in '" + path +
                "' must be uint32 as --data-dtype says, got 0 at every second position, as if each "
                "took 8 bytes\n");
  // Ids above 65536, whose upper parts are up to 2 where the vocabulary has 151936.
  file_of_ids(128, 4, 2);
  EXPECT_EQ(warning(TokenDtype::kUInt16, 151936),
            "data: ids in '" + path +
                "' must be uint16 as --data-dtype says, got a number up to 2 at every second "
                "position, as if each took 4 bytes\n");
  EXPECT_EQ(warning(TokenDtype::kUInt16, 131072), "");  // up to 1: so these are other ids
}

TEST(TokenSource, TakesIdsThatOnlyBeginLikeWiderOnes) {
  const auto accepts = [](const std::string& path) {
    return TokenSource::tokenized_file(path, {}, 65536).size() > 0;
  };
  EXPECT_TRUE(accepts(file_of_ids(127, 4)));  // too few to be certain
  EXPECT_TRUE(accepts(file_of_ids(500, 2)));
  EXPECT_TRUE(accepts(written("zeros.bin", std::string(4096, '\0'))));
  std::string almost;
  for (int i = 0; i < 500; ++i) almost += std::string("\x07\x00\x00\x00", 4);
  EXPECT_TRUE(accepts(written("almost.bin", almost + std::string("\x00\x00\x01\x00", 4))));
}

TEST(TokenSource, NeedsATypeForAVocabularyThatUInt16CannotHold) {
  const auto path = file_of_ids(10, 4);
  EXPECT_EQ(message_of<ValueError>([&] { TokenSource::tokenized_file(path, {}, 65537); }),
            "data: the type of the ids in '" + path +
                "' must be given for a vocab_size above 65536, most of which uint16 does not hold, "
                "got none for 65537");
  EXPECT_EQ(TokenSource::tokenized_file(path, TokenDtype::kUInt32, 65537).size(), 10);
  EXPECT_EQ(TokenSource::tokenized_file(path, {}, 65536).size(), 20);
}

TEST(TokenSource, GivesIdsNoText) {
  const auto path = written("two.bin", "ab");
  const auto ids = TokenSource::tokenized_file(path, TokenDtype::kUInt16, 65536);
  EXPECT_EQ(message_of<Error>([&] { ids.as_text(); }),
            "data: '" + path + "' holds token ids, no text");
}

}  // namespace
}  // namespace moegrad::training::token_source_test
