// SPDX-License-Identifier: Apache-2.0
#include "train/data/packing.h"

#include <algorithm>

#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/data/documents.h"

namespace moegrad::training::packing_test {
namespace {

using namespace test;

std::vector<std::vector<std::int64_t>> lengths(const std::vector<Pack>& packs) {
  std::vector<std::vector<std::int64_t>> lengths(packs.size());
  for (std::size_t p = 0; p < packs.size(); ++p) {
    for (const auto& piece : packs[p]) lengths[p].push_back(piece.length);
  }
  return lengths;
}

using Lengths = std::vector<std::vector<std::int64_t>>;

TEST(SoftPack, ClosesAPackWhenTheNextDocumentDoesNotFit) {
  EXPECT_EQ(lengths(soft_pack(DocumentOffsets{0, 3, 7, 9, 12, 22, 24, 32}, 10)),
            (Lengths{{3, 4, 2}, {3}, {10}, {2, 8}}));
}

TEST(SoftPack, CutsALongDocumentIntoPiecesAndARest) {
  const DocumentOffsets documents = {0, 2, 27, 29};
  const auto packs = soft_pack(documents, 10);
  EXPECT_EQ(lengths(packs), (Lengths{{2}, {10}, {10}, {5, 2}}));
  EXPECT_FALSE(packs[2][0].ends_document);
  EXPECT_TRUE(packs[3][0].ends_document);
  EXPECT_EQ(attention_work(packs[3]), 29);
  EXPECT_EQ(token_count(packs[3]), 7);
}

TEST(SoftPack, LeavesOutWhatHasNoTarget) {
  // Two documents that are empty but for their end, and one whose rest is its end alone.
  EXPECT_EQ(lengths(soft_pack(DocumentOffsets{0, 1, 2, 13, 15}, 10)), (Lengths{{10}, {2}}));
  EXPECT_TRUE(soft_pack(DocumentOffsets{0, 1}, 10).empty());
  EXPECT_TRUE(soft_pack(DocumentOffsets{4, 4}, 10).empty());
  EXPECT_EQ(message_of<ValueError>([] {
              soft_pack(DocumentOffsets{0, 5}, 0);
            }),
            "soft_pack: packs need at least 1 token, got 0");
}

TEST(SoftPack, HasNoTargetsThatAMaskLeavesOut) {
  const TemporaryFolder folder;
  const auto ids = (folder / "ids").string(), mask = (folder / "mask").string();
  write_file(ids, std::string("\1\0\2\0\3\0\4\0\5\0\6\0", 12));
  write_file(mask, std::string("\0\1\0\1\1\0", 6));
  auto tokens = TokenSource::tokenized_file(ids, {}, 300);
  tokens.take_target_mask(mask);
  const auto batch = to_micro_batch(tokens, {{.start = 3, .length = 3, .ends_document = true},
                                             {.start = 0, .length = 3, .ends_document = false}});
  EXPECT_TRUE(bitwise_equal(batch.tokens, Tensor::from<std::int64_t>({4, 5, 6, 1, 2, 3}, {6})));
  EXPECT_TRUE(
      bitwise_equal(batch.targets, Tensor::from<std::int64_t>({5, -100, -100, 2, -100, 4}, {6})));
}

TEST(SoftPack, HoldsEveryTokenOnceInOrderAndKeepsToTheBudget) {
  const Random random(3, "documents");
  DocumentOffsets documents = {0};
  for (std::uint64_t d = 0; d < 500; ++d) {
    documents.push_back(documents.back() + 2 + random.integer(d, d % 10 == 0 ? 200 : 20));
  }
  for (const std::int64_t budget : {2, 3, 16, 64, 1000, 100000}) {
    const PackList list(documents, budget);
    const auto packs = soft_pack(documents, budget);
    ASSERT_EQ(list.size(), std::ssize(packs));
    for (std::int64_t i = 0; i < list.size(); ++i) {
      ASSERT_EQ(list[i], packs[static_cast<std::size_t>(i)]) << budget << " at " << i;
    }
    std::vector<int> seen(static_cast<std::size_t>(documents.back()));
    for (const auto& pack : soft_pack(documents, budget)) {
      EXPECT_LE(token_count(pack), budget);
      for (const auto& [start, length, ends] : pack) {
        EXPECT_EQ(std::ranges::binary_search(documents, start + length), ends);
        const auto next = std::ranges::upper_bound(documents, start);
        EXPECT_LE(start + length, *next);
        for (auto i = start; i < start + length; ++i) ++seen[static_cast<std::size_t>(i)];
      }
    }
    for (std::size_t d = 0; d + 1 < documents.size(); ++d) {
      const auto rest = (documents[d + 1] - documents[d]) % budget;
      for (auto i = documents[d]; i < documents[d + 1]; ++i) {
        const bool left_out = rest == 1 && i + 1 == documents[d + 1];
        ASSERT_EQ(seen[static_cast<std::size_t>(i)], left_out ? 0 : 1) << budget << " at " << i;
      }
    }
  }
}

TEST(ToMicroBatch, TargetsStopAtTheEndOfADocumentAndGoOnWithinIt) {
  const auto tokens = TokenSource::text("abcdefghij", "ten");
  const auto packs = soft_pack(DocumentOffsets{0, 2, 8, 10}, 5);
  ASSERT_EQ(lengths(packs), (Lengths{{2}, {5}, {2}}));
  const auto batch = to_micro_batch(tokens, {packs[0][0], packs[1][0], packs[2][0]});
  EXPECT_EQ(batch.documents.offsets(), (std::vector<std::int64_t>{0, 2, 7, 9}));
  EXPECT_EQ(integers(batch.tokens),
            (std::vector<std::int64_t>{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'i', 'j'}));
  EXPECT_EQ(integers(batch.targets),
            (std::vector<std::int64_t>{'b', -100, 'd', 'e', 'f', 'g', 'h', 'j', -100}));
}

}  // namespace
}  // namespace moegrad::training::packing_test
