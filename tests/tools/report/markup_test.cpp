// SPDX-License-Identifier: Apache-2.0
#include "tools/report/markup.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moegrad::tools::markup_test {
namespace {

TEST(Escape, LeavesNothingThatIsMarkup) {
  EXPECT_EQ(escape("<script src=\"x\">'&'</script>"),
            "&lt;script src=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/script&gt;");
  EXPECT_EQ(escape("&amp;"), "&amp;amp;");
  EXPECT_EQ(escape("caf\u00E9\n\t\u65E5\U0001F600"), "caf\u00E9\n\t\u65E5\U0001F600");
}

TEST(Escape, ReplacesWhatIsNoCharacterOfXml) {
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(escape("a\x01"
                   "b\x1B"),
            "a" + replaced + "b" + replaced);
  EXPECT_EQ(escape(std::string_view("\0", 1)), replaced);
  EXPECT_EQ(escape("a\xFF\xC3<"), "a" + replaced + replaced + "&lt;");
  EXPECT_EQ(escape("\xEF\xBF\xBF-\xEF\xBF\xBE-\xEF\xBF\xBD"),
            replaced + "-" + replaced + "-" + replaced);
}

TEST(Format, NumbersBytesAndSeconds) {
  EXPECT_EQ(fixed(1.255, 1), "1.3");
  EXPECT_EQ(fixed(-2, 0), "-2");
  EXPECT_EQ(fixed(NAN, 2), "-");
  EXPECT_EQ(fixed(-INFINITY, 2), "-");
  EXPECT_EQ(fixed(1e308, 0).size(), 309U);
  EXPECT_EQ(short_number(1), "1");
  EXPECT_EQ(short_number(0.25), "0.25");
  EXPECT_EQ(short_number(18230.44), "18230.4");
  EXPECT_EQ(short_number(1e20), "1e+20");
  EXPECT_EQ(short_number(NAN), "-");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(3.25 * (1 << 30)), "3.25 GiB");
  EXPECT_EQ(format_bytes(2048.0 * (1LL << 40)), "2048.00 TiB");
  EXPECT_EQ(format_seconds(28.68), "28.7 s");
  EXPECT_EQ(format_seconds(1890), "31.5 min");
  EXPECT_EQ(format_seconds(54992), "15.3 h");
}

}  // namespace
}  // namespace moegrad::tools::markup_test
