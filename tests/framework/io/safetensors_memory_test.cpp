// SPDX-License-Identifier: Apache-2.0
// What reading a header allocates, next to the size of the file: at most twice as much, whatever
// the header says, apart from a fixed amount that the limit on metadata allows.
#include <gtest/gtest.h>

#include <string>

#include "framework/io/safetensors.h"
#include "tests/framework/io/allocation_count.h"
#include "tests/framework/io/files.h"

namespace moegrad::safetensors_memory_test {
namespace {

using namespace test;

constexpr std::size_t kMetadataLimit = 1024 * 256;  // nodes of a map of 1024 short keys

/// Bytes allocated at most while the file is read or refused.
std::size_t peak(const std::string& file) {
  return test::peak_of([&] {
    try {
      parse_safetensors_header(as_bytes(file), "test");
    } catch (const SafetensorsError&) {
    }
  });
}

/// "{ ... }" of `count` members.
template <class Member>
std::string object_of(int count, const Member& member) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + member(i);
  return text + "}";
}

std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

/// A name of four characters, another one for each i below 64^4.
std::string short_name(int i) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string name;
  for (int shift = 0; shift < 24; shift += 6) name += kLetters[std::size_t(i >> shift & 63)];
  return name;
}

TEST(SafetensorsMemory, StaysWithinTwiceTheFileForHostileHeaders) {
  constexpr int kMillion = 1'000'000;
  const auto entry = [](const std::string& name, const std::string& shape,
                        const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[)" +
           offsets + "]}";
  };
  const auto text = std::string(33 * kMillion, 'x');
  const std::pair<std::string, std::string> headers[] = {
      {"a million dimensions", "{" + entry("a", "0" + repeat(",0", kMillion), "0,0") + "}"},
      {"a million arrays", repeat("[", kMillion)},
      {"a million objects", repeat(R"({"a":)", kMillion)},
      {"a million braces", repeat("{", kMillion)},
      {"a million braces in a name", "{" + entry(repeat("{", kMillion), "", "0,4") + "}"},
      {"100 thousand overlapping tensors",
       object_of(100'000,
                 [&](int i) { return entry("weight_" + std::to_string(i), "2,2", "0,16"); })},
      {"100 thousand metadata keys",
       R"({"__metadata__":)" +
           object_of(100'000, [](int i) { return "\"" + std::to_string(i) + "\":\"\""; }) + "}"},
      {"a name of 33 MB", "{" + entry(text, "1", "0,4") + "}"},
      {"a name of 33 MB that is not closed", "{\"" + text},
      {"a name of 33 MB of escapes",
       "{" + entry(repeat("\\u0041", 33 * kMillion / 6), "", "0,4") + "}"},
      {"a dtype of 33 MB", R"({"a":{"dtype":")" + text + "\"}}"},
      {"a field of 33 MB", R"({"a":{")" + text + "\":1}}"},
      {"a metadata value of 33 MB", R"({"__metadata__":{"a":")" + text + "\"}}"},
      {"an integer of 33 MB", R"({"a":{"shape":[)" + std::string(33 * kMillion, '1') + "]}}"},
      {"garbage of 33 MB", "{}" + text},
  };
  for (const auto& [name, header] : headers) {
    const auto file = safetensors_bytes(header, 4);
    EXPECT_LE(peak(file), 2 * file.size() + kMetadataLimit) << name;
  }
}

// The largest ratio that a header can reach: short names, and dimensions of one digit, as few or as
// many as allowed. The tensors are empty, so they need no data.
TEST(SafetensorsMemory, StaysWithinTwoAndAQuarterTimesTheFileForTheShortestTensors) {
  for (const std::string shape : {"0", "0,0,0,0,0,0,0,0"}) {
    const auto file = safetensors_bytes(object_of(100'000, [&](int i) {
      return "\"" + short_name(i) + R"(":{"dtype":"U8","shape":[)" + shape +
             R"(],"data_offsets":[0,0]})";
    }));
    EXPECT_EQ(parse_safetensors_header(as_bytes(file), "test").entries.size(), 100'000U);
    EXPECT_LE(4 * peak(file), 9 * file.size()) << shape;
  }
}

TEST(SafetensorsMemory, CountsWhatIsAllocated) {
  EXPECT_EQ(test::peak_of([] {}), 0U);
  const auto counted = test::peak_of([] {
    const std::string first(1000, 'x');
    const std::string second(2000, 'x');
  });
  EXPECT_GE(counted, 3000U);
  EXPECT_LE(counted, 3100U);
}

}  // namespace
}  // namespace moegrad::safetensors_memory_test
