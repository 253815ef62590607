// SPDX-License-Identifier: Apache-2.0
#include "train/data/packed_data.h"

#include <algorithm>
#include <map>
#include <memory>

#include "tests/testing.h"

namespace moegrad::training::packed_data_test {
namespace {

using namespace test;

/// Documents of 2 to 41 letters, each with a letter of its own.
std::string documents_text() {
  std::string text;
  const Random random(7, "lengths");
  for (std::uint64_t d = 0; d < 50; ++d) {
    const auto length = static_cast<std::size_t>(2 + random.integer(d, 40));
    text += std::string(length, static_cast<char>('!' + d)) + "\n\n";
  }
  return text;
}

std::unique_ptr<PackedData> packed(const std::string& text, const PackOptions& options) {
  return std::make_unique<PackedData>(TokenSource::text(text, "text"), blank_line_documents(text),
                                      options);
}

constexpr PackOptions kOptions = {
    .micro_batches = 4, .budget = 32, .validation_batches = 2, .seed = 1};

bool equal(const MicroBatch& a, const MicroBatch& b) {
  return bitwise_equal(a.tokens, b.tokens) && bitwise_equal(a.targets, b.targets) &&
         a.documents == b.documents;
}

TEST(PackedData, TrainsOnEachTokenOnceAnEpochAndNeverOnWhatIsHeldOut) {
  const auto text = documents_text();
  auto options = kOptions;
  options.micro_batches = 1;
  options.budget = 64;  // no document is cut
  const auto data = packed(text, options);
  const auto training =
      static_cast<std::size_t>(hold_out(blank_line_documents(text)).training.back());
  std::map<std::int64_t, int> expected;
  for (const char c : text.substr(0, training)) ++expected[c];
  // An epoch ends where as many tokens have come.
  std::map<std::int64_t, int> seen;
  std::int64_t step = 0;
  for (; data->tokens_before(step) < static_cast<std::int64_t>(training); ++step) {
    for (const auto token : integers(step_batches(*data, step)[0].tokens)) ++seen[token];
  }
  EXPECT_EQ(data->tokens_before(step), static_cast<std::int64_t>(training));
  EXPECT_EQ(seen, expected);
}

TEST(PackedData, ADocumentsTargetsAreItsOwn) {
  const auto data = packed(documents_text(), kOptions);
  for (std::int64_t step = 0; step < 20; ++step) {
    for (const auto& batch : step_batches(*data, step)) {
      EXPECT_LE(batch.tokens.numel(), 32);
      const auto tokens = integers(batch.tokens), targets = integers(batch.targets);
      const auto& offsets = batch.documents.offsets();
      for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
        const auto begin = static_cast<std::size_t>(offsets[d]);
        const auto last = static_cast<std::size_t>(offsets[d + 1]) - 1;
        for (auto i = begin; i < last; ++i) EXPECT_EQ(targets[i], tokens[i + 1]);
        // A letter's document ends with two newlines; a piece of it that does not goes on.
        const bool ends = tokens[last] == '\n' && (last == begin || tokens[last - 1] == '\n');
        EXPECT_TRUE(targets[last] == (ends ? -100 : '\n') ||
                    (!ends && targets[last] == tokens[last]));
      }
    }
  }
}

TEST(PackedData, GivesTheSameBatchesAgainInAnyOrder) {
  const auto text = documents_text();
  const auto data = packed(text, kOptions);
  std::vector<std::vector<MicroBatch>> steps;
  for (std::int64_t step = 0; step < 40; ++step) steps.push_back(step_batches(*data, step));
  const auto check_from = [&](const TrainingData& other, std::int64_t first, std::int64_t stride) {
    for (auto step = first; 0 <= step && step < 40; step += stride) {
      const auto again = step_batches(other, step);
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(equal(again[i], steps[static_cast<std::size_t>(step)][i])) << step;
      }
    }
  };
  check_from(*packed(text, kOptions), 17, 1);
  check_from(*data, 39, -1);
  auto other_seed = kOptions;
  other_seed.seed = 2;
  EXPECT_FALSE(equal(step_batches(*packed(text, other_seed), 0)[0], steps[0][0]));
}

TEST(PackedData, CountsTheTokensOfItsSteps) {
  const auto data = packed(documents_text(), kOptions);
  std::int64_t tokens = 0;
  for (std::int64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(data->tokens_before(step), tokens);
    for (const auto& batch : step_batches(*data, step)) tokens += batch.tokens.numel();
  }
}

TEST(PackedData, ValidatesOnHeldOutDocumentsInOrder) {
  const auto text = documents_text();
  const auto data = packed(text, kOptions);
  EXPECT_EQ(data->validation_batches(), 2);
  const auto from = static_cast<std::size_t>(hold_out(blank_line_documents(text)).validation[0]);
  std::string seen;
  for (std::int64_t i = 0; i < 2; ++i) {
    for (const auto token : integers(data->validation_batch(i).tokens)) {
      seen += static_cast<char>(token);
    }
  }
  EXPECT_EQ(seen, text.substr(from, seen.size()));
  auto many = kOptions;
  many.validation_batches = 100;
  EXPECT_LT(packed(text, many)->validation_batches(), 10);
}

TEST(PackedData, FewerPacksThanMicroBatchesComeAgainWithinAStep) {
  const auto data = packed(std::string(40, 'a'), kOptions);  // 38 tokens: packs of 32 and 6
  const auto batches = step_batches(*data, 0);
  ASSERT_EQ(batches.size(), 4U);
  std::vector<std::int64_t> sizes;
  for (const auto& batch : batches) sizes.push_back(batch.tokens.numel());
  std::ranges::sort(sizes);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{6, 6, 32, 32}));
}

TEST(PackedData, IsDescribedByItsDocuments) {
  const auto text = documents_text();
  EXPECT_TRUE(packed(text, kOptions)->describe().starts_with("50 documents, ends with CRC-32C "));
  const PackedData one(TokenSource::text(text, "text"), {0, std::ssize(text)}, kOptions);
  EXPECT_TRUE(one.describe().starts_with("1 documents"));
  const PackedData two(TokenSource::text(text, "text"), {0, 9, std::ssize(text)}, kOptions);
  const PackedData others(TokenSource::text(text, "text"), {0, 8, std::ssize(text)}, kOptions);
  EXPECT_NE(two.describe(), others.describe());
}

TEST(PackedData, NeedsADocumentForEachPart) {
  EXPECT_EQ(message_of<ValueError>([] { packed("0123456789", kOptions); }),
            "--pack: 'text' must have a document of 2 tokens or more to train on and one in its "
            "last twentieth, got 10 bytes");
  EXPECT_EQ(message_of<ValueError>([] {
              PackedData(TokenSource::text("abcd", "text"), {0, 1, 2, 3, 4}, kOptions);
            }),
            "--pack: 'text' must have a document of 2 tokens or more to train on and one in its "
            "last twentieth, got 4 bytes");
}

TEST(PackedData, RefusesOffsetsThatAreNotOfItsTokensAndSizesBelowOne) {
  const auto refusal = [](DocumentOffsets offsets, const PackOptions& options = kOptions) {
    return message_of<ValueError>(
        [&] { PackedData(TokenSource::text("abcdefgh", "text"), std::move(offsets), options); });
  };
  EXPECT_EQ(refusal({}), "data: documents must have at least 2 offsets, got 0");
  for (const DocumentOffsets& offsets : {DocumentOffsets{0, 9}, {-1, 8}, {0, 8, 4}}) {
    EXPECT_EQ(refusal(offsets),
              "data: offsets of documents must rise from at least 0 to at most 8 bytes, got " +
                  std::to_string(offsets.front()) + " to " + std::to_string(offsets.back()));
  }
  for (const PackOptions& options : {PackOptions{.micro_batches = 0}, PackOptions{.budget = -1},
                                     PackOptions{.validation_batches = 0}}) {
    EXPECT_TRUE(refusal({0, 8}, options).starts_with("data: budget, micro_batches and validation"));
  }
}

}  // namespace
}  // namespace moegrad::training::packed_data_test
