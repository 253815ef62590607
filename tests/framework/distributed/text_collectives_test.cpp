// SPDX-License-Identifier: Apache-2.0
#include "framework/distributed/text_collectives.h"

#include <gtest/gtest.h>

#include "framework/distributed/launch.h"

namespace moegrad::text_collectives_test {
namespace {

TEST(TextCollectives, GiveEveryRankTheTextsOfAll) {
  const std::vector<std::string> all = {"", std::string("a\0b", 3), "exactly8", "and a longer one"};
  for (int world_size = 1; world_size <= 4; ++world_size) {
    launch(world_size, [&](RankContext& context) {
      const auto rank = static_cast<std::size_t>(context.rank());
      const auto texts = all_gather_texts(context.group(), all[rank]);
      EXPECT_EQ(texts, std::vector<std::string>(all.begin(), all.begin() + world_size));
      const auto empty = all_gather_texts(context.group(), "");
      EXPECT_EQ(empty, std::vector<std::string>(static_cast<std::size_t>(world_size)));
    });
  }
  EXPECT_EQ(all_gather_texts(nullptr, "alone"), std::vector<std::string>{"alone"});
}

TEST(TextCollectives, NameTheRanksThatDiffer) {
  EXPECT_EQ(ranks_that_differ({"a"}), "");
  EXPECT_EQ(ranks_that_differ({"a", "a", "a"}), "");
  EXPECT_EQ(ranks_that_differ({"a", "b", "a", ""}), "1, 3");
}

}  // namespace
}  // namespace moegrad::text_collectives_test
