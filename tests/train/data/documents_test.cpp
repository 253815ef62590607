// SPDX-License-Identifier: Apache-2.0
#include "train/data/documents.h"

#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::training::documents_test {
namespace {

using test::message_of;

std::vector<std::string> parts(std::string_view text, const DocumentOffsets& offsets) {
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_EQ(offsets.back(), std::ssize(text));
  std::vector<std::string> parts;
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    const auto begin = static_cast<std::size_t>(offsets[d]);
    parts.emplace_back(text.substr(begin, static_cast<std::size_t>(offsets[d + 1]) - begin));
  }
  return parts;
}

TEST(Documents, BeginAfterBlankLines) {
  const auto cut = [](std::string_view text) { return parts(text, blank_line_documents(text)); };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(cut("a\nb\n\nc\n\n\n\nd"), (Parts{"a\nb\n\n", "c\n\n\n\n", "d"}));
  EXPECT_EQ(cut("a\r\n\r\nb\n \t\nc"), (Parts{"a\r\n\r\n", "b\n \t\n", "c"}));
  EXPECT_EQ(cut("\n\na\n\n"), (Parts{"\n\na\n\n"}));
  EXPECT_EQ(cut("one line"), (Parts{"one line"}));
  EXPECT_EQ(cut("\n\n"), (Parts{"\n\n"}));
}

TEST(Documents, OfTheKingJamesTextAreItsChapters) {
  const std::string_view text =
      "Ge1:1 In the beginning\nGe1:2 And :1 too\nGe2:1 Thus\nGe2:11 The\nGe2:21 And\nExo1:1 Now\n";
  EXPECT_EQ(parts(text, king_james_chapters(text)),
            (std::vector<std::string>{"Ge1:1 In the beginning\nGe1:2 And :1 too\n",
                                      "Ge2:1 Thus\nGe2:11 The\nGe2:21 And\n", "Exo1:1 Now\n"}));
}

TEST(Documents, EndWithTheirId) {
  const test::TemporaryFolder folder;
  const auto path = (folder / "documents.bin").string();
  test::write_file(path, std::string("\5\0\7\0\7\0\1\2\7\0", 10));
  const auto tokens = TokenSource::tokenized_file(path, TokenDtype::kUInt16, 65536);
  EXPECT_EQ(end_token_documents(tokens, 7), (DocumentOffsets{0, 2, 3, 5}));
  EXPECT_EQ(message_of<ValueError>([&] { end_token_documents(tokens, 5); }),
            "data: '" + path + "' must end with the end-of-document id 5, got 7");
}

TEST(Documents, ThatBeginInTheLastTwentiethAreHeldOut) {
  const auto [training, validation] = hold_out({0, 30, 94, 96, 100});
  EXPECT_EQ(training, (DocumentOffsets{0, 30, 94, 96}));
  EXPECT_EQ(validation, (DocumentOffsets{96, 100}));
  const auto at_the_cut = hold_out({0, 95, 97, 100});
  EXPECT_EQ(at_the_cut.training, (DocumentOffsets{0, 95}));
  EXPECT_EQ(at_the_cut.validation, (DocumentOffsets{95, 97, 100}));
}

TEST(Documents, TheLastIsCutInTwoIfItIsTooLong) {
  const auto one = hold_out({0, 100});
  EXPECT_EQ(one.training, (DocumentOffsets{0, 95}));
  EXPECT_EQ(one.validation, (DocumentOffsets{95, 100}));
  const auto two = hold_out({0, 94, 100});
  EXPECT_EQ(two.training, (DocumentOffsets{0, 94, 95}));
  EXPECT_EQ(two.validation, (DocumentOffsets{95, 100}));
  const auto short_of_twenty = hold_out({0, 19});
  EXPECT_EQ(short_of_twenty.training, (DocumentOffsets{0, 19}));
  EXPECT_EQ(short_of_twenty.validation, (DocumentOffsets{19}));
}

}  // namespace
}  // namespace moegrad::training::documents_test
