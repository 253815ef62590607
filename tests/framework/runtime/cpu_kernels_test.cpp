// SPDX-License-Identifier: Apache-2.0
#include "framework/runtime/cpu_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framework/distributed/launch.h"
#include "framework/runtime/rank_context.h"
#include "tests/testing.h"

namespace moegrad::cpu_kernels_test {
namespace {

constexpr CpuKernels kAll[] = {CpuKernels::kNarrow, CpuKernels::kAvx512, CpuKernels::kAvx512Bf16,
                               CpuKernels::kAmx};

bool is_available(CpuKernels kernels) {
  return std::ranges::count(available_cpu_kernels(), kernels) == 1;
}

TEST(CpuKernels, ThoseOfNarrowVectorsAreEverywhereAndFirst) {
  const auto& available = available_cpu_kernels();
  ASSERT_FALSE(available.empty());
  EXPECT_EQ(available.front(), CpuKernels::kNarrow);
  EXPECT_TRUE(std::ranges::is_sorted(available));
  EXPECT_TRUE(is_available(fastest_cpu_kernels()));
  EXPECT_TRUE(names_of_cpu_kernels().starts_with(to_string(CpuKernels::kNarrow)));
}

TEST(CpuKernels, AreTheFasterTheMoreTheyCanButForVdpbf16ps) {
  std::vector<CpuKernels> some;
  for (const auto kernels : available_cpu_kernels()) {
    some.push_back(kernels);
    const auto fastest = fastest_of(some);
    if (kernels == CpuKernels::kAvx512Bf16) {  // as it is measured, and the same each time
      EXPECT_NE(fastest, CpuKernels::kNarrow);
      for (int i = 0; i < 5; ++i) EXPECT_EQ(fastest_of(some), fastest);
      RecordProperty("fastest_but_amx", std::string(to_string(fastest)));
    } else {
      EXPECT_EQ(fastest, kernels);
    }
  }
  EXPECT_EQ(fastest_cpu_kernels(), fastest_of(available_cpu_kernels()));
}

TEST(CpuKernels, ARankHasTheFastestUntilItIsGivenOthers) {
  EXPECT_EQ(RankContext().kernels(), fastest_cpu_kernels());
  RankContext context({.kernels = CpuKernels::kNarrow});
  EXPECT_EQ(context.kernels(), CpuKernels::kNarrow);
  for (const auto kernels : available_cpu_kernels()) {
    context.set_kernels(kernels);
    EXPECT_EQ(context.kernels(), kernels);
  }
}

TEST(CpuKernels, ThatTheCpuLacksAreRefused) {
  constexpr auto kNone = static_cast<CpuKernels>(99);
  EXPECT_EQ(to_string(kNone), "unknown");
  RankContext context;
  for (const auto kernels : {kAll[0], kAll[1], kAll[2], kAll[3], kNone}) {
    if (is_available(kernels)) continue;
    const auto expected = ": kernels must be among those that this CPU can run, " +
                          names_of_cpu_kernels() + ", got " + std::string(to_string(kernels));
    EXPECT_EQ(test::message_of<ValueError>([&] { context.set_kernels(kernels); }),
              "set_kernels" + expected);
    EXPECT_EQ(test::message_of<ValueError>([&] { RankContext({.kernels = kernels}); }),
              "RankContext" + expected);
    EXPECT_EQ(
        test::message_of<ValueError>([&] { launch(1, [](RankContext&) {}, {.kernels = kernels}); }),
        "launch" + expected);
  }
  EXPECT_EQ(context.kernels(), fastest_cpu_kernels());
}

}  // namespace
}  // namespace moegrad::cpu_kernels_test
