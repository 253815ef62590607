// SPDX-License-Identifier: Apache-2.0
// Every prefix and every bit flip of three small files. Each flipped file must be refused, or mean
// exactly what an independent reading of its bytes says: nlohmann's DOM and the rules spelt out on
// top of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "framework/io/safetensors.h"
#include "tests/framework/io/files.h"

namespace moegrad::safetensors_sweep_test {
namespace {

using nlohmann::json;
using namespace test;
using Kind = SafetensorsError::Kind;

std::vector<std::string> seeds() {
  return {
      safetensors_bytes(R"({"__metadata__":{"format":"pt","\u00e9":"\ud83d\ude00"},)"
                        R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                        R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]}}  )",
                        30),
      safetensors_bytes(R"({"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                        R"("b":{"dtype":"F4","shape":[3,2],"data_offsets":[8,11]},)"
                        R"("c":{"dtype":"U8","shape":[4,0],"data_offsets":[11,11]},)"
                        R"("d":{"dtype":"C64","shape":[1,1],"data_offsets":[11,19]}})",
                        19),
      safetensors_bytes("\t{ \"__metadata__\": {},\n \"\u20ac\\n\": {\"shape\": [10], "
                        "\"data_offsets\": [0, 10], \"dtype\": \"F8_E4M3\"} } "
                        "\r\n",
                        10),
      safetensors_bytes(R"({"__metadata__":null,"a":{"more":[-1.5e2,null,{"x":"y"}],"shape":[2],)"
                        R"("b":true,"dtype":"U8","data_offsets":[0,2]}})",
                        2),
  };
}

struct Contents {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// All values are unsigned integers and there are at most `max` of them.
bool is_unsigned_list(const json& value, std::size_t max) {
  return value.is_array() && value.size() <= max &&
         std::ranges::all_of(value, [](const json& item) { return item.is_number_unsigned(); });
}

/// Nothing if the file is not valid.
std::optional<Contents> interpret(const std::string& bytes) {
  if (bytes.size() < 8) return {};
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(bytes[std::size_t(i)]);
  if (length > 100'000'000 || length + 8 > bytes.size()) return {};
  const std::string text = bytes.substr(8, length);
  if (text.find('\0') != std::string::npos || text.starts_with("\xef\xbb\xbf")) return {};

  bool distinct = true;
  std::vector<std::set<std::string>> keys;
  const auto header = json::parse(
      text,
      [&](int, json::parse_event_t event, json& parsed) {
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        if (event == json::parse_event_t::object_end) keys.pop_back();
        if (event == json::parse_event_t::key) {
          const auto key = parsed.get<std::string>();
          distinct = distinct && keys.back().insert(key).second && key.find('\0') == key.npos;
        }
        return true;
      },
      /*allow_exceptions=*/false);
  if (!distinct || !header.is_object()) return {};

  const std::map<std::string, std::uint64_t> bits = {
      {"F32", 32}, {"BF16", 16},   {"I64", 64}, {"F4", 4},     {"U8", 8},
      {"C64", 64}, {"F8_E4M3", 8}, {"F64", 64}, {"I8", 8},     {"U64", 64},
      {"F16", 16}, {"U32", 32},    {"I32", 32}, {"F8_E5M2", 8}};
  Contents contents;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__" && value.is_null()) continue;
    if (!value.is_object()) return {};
    if (name == "__metadata__") {
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string()) return {};
        contents.metadata[key] = text_value.get<std::string>();
        if (contents.metadata[key].find('\0') != std::string::npos) return {};
      }
      continue;
    }
    if (!value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets") ||
        !value["dtype"].is_string() || !bits.contains(value["dtype"]) ||
        !is_unsigned_list(value["shape"], 8) || !is_unsigned_list(value["data_offsets"], 2) ||
        value["data_offsets"].size() != 2) {
      return {};
    }
    SafetensorsEntry entry;
    entry.name = name;
    entry.dtype = *safetensors_dtype(value["dtype"].get<std::string>());
    const auto shape = value["shape"].get<std::vector<std::int64_t>>();
    entry.shape = SafetensorsShape(shape);
    entry.begin = value["data_offsets"][0];
    entry.end = value["data_offsets"][1];
    std::uint64_t size = bits.at(value["dtype"]);  // flips of the seeds make no large numbers
    for (const auto dim : shape) size *= static_cast<std::uint64_t>(dim);
    if (size % 8 != 0 || entry.begin + size / 8 != entry.end) return {};
    contents.entries.push_back(entry);
  }
  std::ranges::sort(contents.entries, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.begin, entry.end);
  });
  std::uint64_t end = 0;
  for (const auto& entry : contents.entries) {
    if (entry.begin != end) return {};
    end = entry.end;
  }
  if (8 + length + end != bytes.size()) return {};
  return contents;
}

TEST(SafetensorsSweep, SeedsAreValid) {
  for (const auto& seed : seeds()) EXPECT_TRUE(interpret(seed).has_value()) << seed;
}

TEST(SafetensorsSweep, EveryTruncationIsRefused) {
  const test::TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  for (const auto& seed : seeds()) {
    const auto header_bytes = 8 + static_cast<unsigned char>(seed[0]);
    for (std::size_t length = 0; length < seed.size(); ++length) {
      test::write_file(path, std::string_view(seed).substr(0, length));
      const auto expected = length < 8                           ? Kind::kFileTooShort
                            : length < std::size_t(header_bytes) ? Kind::kHeaderPastEnd
                                                                 : Kind::kDataMissing;
      try {
        const SafetensorsFile file(path);
        ADD_FAILURE() << "accepted " << length << " of " << seed.size() << " bytes";
      } catch (const SafetensorsError& error) {
        EXPECT_EQ(error.kind(), expected) << error.what();
      }
    }
  }
}

TEST(SafetensorsSweep, EveryBitFlipIsRefusedOrMeansWhatItSays) {
  const test::TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  int refused = 0, accepted = 0;
  for (const auto& seed : seeds()) {
    for (std::size_t bit = 0; bit < 8 * seed.size(); ++bit) {
      std::string bytes = seed;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      const auto expected = interpret(bytes);
      test::write_file(path, bytes);
      try {
        const SafetensorsFile file(path);
        ++accepted;
        ASSERT_TRUE(expected.has_value()) << "accepted flip of bit " << bit << ":\n" << bytes;
        EXPECT_EQ(file.entries(), expected->entries) << bytes;
        EXPECT_EQ(file.metadata(), expected->metadata) << bytes;
        std::string data;
        for (const auto& entry : file.entries()) data += test::as_text(file.bytes(entry));
        EXPECT_TRUE(bytes.ends_with(data));
      } catch (const SafetensorsError& error) {
        ++refused;
        ASSERT_FALSE(expected.has_value())
            << "refused flip of bit " << bit << ": " << error.what() << ":\n"
            << bytes;
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 500);  // flips in the data, in names, in metadata
}

}  // namespace
}  // namespace moegrad::safetensors_sweep_test
