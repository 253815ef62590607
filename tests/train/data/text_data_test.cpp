// SPDX-License-Identifier: Apache-2.0
#include "train/data/text_data.h"

#include <algorithm>

#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/data/windowed_data.h"

namespace moegrad::training::text_data_test {
namespace {

using test::message_of;

std::string letters(std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) text += static_cast<char>('a' + i % 26);
  return text;
}

TEST(TextData, TargetsAreTheNextBytes) {
  const TextData data(letters(400), "letters", 8);
  for (std::int64_t step = 0; step < 5; ++step) {
    const auto batch = data.training_batch(1, step, 0, 2, 3);
    EXPECT_EQ(batch.documents.offsets(), (std::vector<std::int64_t>{0, 8, 16, 24}));
    const auto tokens = batch.tokens.data<std::int64_t>();
    const auto targets = batch.targets.data<std::int64_t>();
    for (std::size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(targets[i], tokens[i] == 'z' ? 'a' : tokens[i] + 1);
    }
  }
}

TEST(TextData, BatchesDependOnSeedStepAndIndexAlone) {
  const TextData data(letters(4000), "letters", 8);
  // Micro-batches 0 and 1 of two sequences are micro-batch 0 of four.
  const auto all = data.training_batch(1, 3, 0, 1, 4);
  const auto second = data.training_batch(1, 3, 1, 2, 2);
  EXPECT_TRUE(std::ranges::equal(all.tokens.data<std::int64_t>().subspan(16),
                                 second.tokens.data<std::int64_t>()));
  EXPECT_FALSE(test::bitwise_equal(all.tokens, data.training_batch(2, 3, 0, 1, 4).tokens));
  EXPECT_FALSE(test::bitwise_equal(all.tokens, data.training_batch(1, 4, 0, 1, 4).tokens));
}

TEST(TextData, HoldsTheTailOutOfTraining) {
  std::string text = letters(400);
  for (std::size_t i = 380; i < 400; ++i) text[i] = '!';
  const TextData data(text, "letters", 8);
  EXPECT_EQ(data.training_tokens(), 380);
  EXPECT_EQ(data.validation_sequences(), 2);
  const auto held_out = data.validation_batch(0, 2);
  for (const auto token : held_out.tokens.data<std::int64_t>()) EXPECT_EQ(token, '!');
  for (std::int64_t step = 0; step < 200; ++step) {
    const auto batch = data.training_batch(1, step, 0, 1, 1);
    for (const auto token : batch.targets.data<std::int64_t>()) EXPECT_NE(token, '!');
  }
  EXPECT_EQ(message_of<ValueError>([&] { data.validation_batch(1, 2); }),
            "text: validation sequences [1, 3) asked for, there are 2");
}

TEST(TextData, RefusesMissingEmptyAndShortTexts) {
  EXPECT_EQ(message_of<Error>([] { TextData("/nowhere/text.txt", 8); }),
            "text: /nowhere/text.txt: must be a readable regular file, got No such file or "
            "directory");
  const test::TemporaryFolder folder;
  const auto path = (folder / "empty.txt").string();
  test::write_file(path, "");
  EXPECT_EQ(message_of<ValueError>([&] { TextData(path, 8); }), "text: '" + path + "' is empty");
  EXPECT_EQ(message_of<ValueError>([] { TextData("abcdefgh", "eight", 8); }),
            "text: sequences of 8 tokens need at least 180 bytes, 'eight' has 8");
  EXPECT_NO_THROW(TextData(letters(180), "letters", 8));
  EXPECT_THROW(TextData(letters(179), "letters", 8), ValueError);
}

TEST(TextData, RefusesSizesBelowOne) {
  EXPECT_EQ(message_of<ValueError>([] { TextData(letters(180), "letters", 0); }),
            "data: sequence_length must be at least 1, got 0");
  for (const WindowOptions& options :
       {WindowOptions{.micro_batches = 0}, WindowOptions{.sequences = 0},
        WindowOptions{.validation_sequences = -1}}) {
    const auto message = message_of<ValueError>(
        [&] { WindowedData(TextData(letters(180), "letters", 8), options); });
    EXPECT_TRUE(
        message.starts_with("data: micro_batches, sequences and validation_sequences must "
                            "be at least 1, got "))
        << message;
  }
}

}  // namespace
}  // namespace moegrad::training::text_data_test
