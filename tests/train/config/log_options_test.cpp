// SPDX-License-Identifier: Apache-2.0
#include "train/config/log_options.h"

#include "tests/testing.h"

namespace moegrad::training::log_options_test {
namespace {

using test::message_of;

TrainOptions with(const std::string& profile_steps, const std::string& profile = {}) {
  TrainOptions options;
  options.steps = 10;
  options.profile_steps = profile_steps;
  options.profile = profile;
  return options;
}

TEST(ProfiledSteps, AreAHalfOpenRange) {
  EXPECT_FALSE(profiled_steps(with("")));
  const auto steps = profiled_steps(with("2:4", "t.json"));
  ASSERT_TRUE(steps);
  EXPECT_FALSE(steps->contains(1));
  EXPECT_TRUE(steps->contains(2) && steps->contains(3));
  EXPECT_FALSE(steps->contains(4));
  EXPECT_TRUE(profiled_steps(with("9:10")));
}

TEST(ProfiledSteps, RefuseWhatIsNone) {
  for (const std::string text : {"3", ":", "3:", ":3", "3:3", "4:3", "-1:3", "0:11", "a:b", "1:2x",
                                 "1 :2", "0:99999999999999999999", "1:2:3"}) {
    EXPECT_EQ(message_of<ValueError>([&] { profiled_steps(with(text)); }),
              "--profile-steps: must be a:b with 0 <= a < b <= 10 (steps), got '" + text + "'");
  }
  EXPECT_EQ(message_of<ValueError>([] { profiled_steps(with("", "t.json")); }),
            "--profile: needs --profile-steps");
  EXPECT_EQ(message_of<ValueError>([] { with("", "t.json").model_config(); }),
            "--profile: needs --profile-steps");
}

}  // namespace
}  // namespace moegrad::training::log_options_test
