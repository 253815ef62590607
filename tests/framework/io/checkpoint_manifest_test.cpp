// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "tests/testing.h"

namespace moegrad::checkpoint_manifest_test {
namespace {

using nlohmann::json;
using test::message_of;

// Tensors cut along either dimension, into quarters, whole, without elements, without dimensions.
CheckpointManifest example() {
  return {.step = 40,
          .world_size = 2,
          .values = {{"schedule", "{\"step\": 40}"}, {"empty", ""}},
          .tensors = {{"rows",
                       {.shape = {5, 4},
                        .pieces = {{"rank-0", {0, 0}, {3, 4}}, {"rank-1", {3, 0}, {2, 4}}}}},
                      {"columns",
                       {.dtype = Dtype::kBFloat16,
                        .shape = {2, 6},
                        .pieces = {{"rank-1", {0, 2}, {2, 4}}, {"rank-0", {0, 0}, {2, 2}}}}},
                      {"quarters",
                       {.dtype = Dtype::kInt64,
                        .shape = {2, 2},
                        .pieces = {{"rank-0", {0, 0}, {1, 1}},
                                   {"more-0", {1, 1}, {1, 1}},
                                   {"rank-1", {0, 1}, {1, 1}},
                                   {"more-1", {1, 0}, {1, 1}}}}},
                      {"none", {.dtype = Dtype::kFloat64, .shape = {0, 3}, .pieces = {}}},
                      {"scalar", {.shape = {}, .pieces = {{"rank-0", {}, {}}}}}},
          .files = {{"more-0", {.bytes = 1, .crc32c = 1}},
                    {"more-1", {.bytes = 2, .crc32c = 2}},
                    {"rank-0", {.bytes = 1000, .crc32c = 0xffffffff}},
                    {"rank-1", {.bytes = 0, .crc32c = 0}}}};
}

TEST(CheckpointManifest, ReadsWhatItWrites) {
  EXPECT_EQ(parse_checkpoint_manifest(to_json(example()), "m"), example());
  EXPECT_EQ(parse_checkpoint_manifest(to_json({}), "m"), CheckpointManifest());
}

// What is read after `change` has been made to the example's JSON.
std::string refusal(const std::function<void(json&)>& change) {
  json manifest = json::parse(to_json(example()));
  change(manifest);
  if (manifest.erase("crc32c") == 1) {
    const auto text = manifest.dump();
    manifest["crc32c"] = crc32c(std::as_bytes(std::span(text)));
  }
  return message_of<ValueError>([&] { parse_checkpoint_manifest(manifest.dump(), "m"); });
}

std::string refusal_of(const char* pointer, const json& value) {
  return refusal([&](json& manifest) { manifest[json::json_pointer(pointer)] = value; });
}

TEST(CheckpointManifest, RefusesKeysThatAreMissingUnknownOrOfAnotherType) {
  EXPECT_EQ(message_of<ValueError>([] { parse_checkpoint_manifest("[]", "m"); }),
            "m: must be an object, got []");
  EXPECT_EQ(refusal([](json& m) { m.erase("step"); }), "m: must have step, got none");
  EXPECT_EQ(refusal_of("/more", 1), "m: must have known keys alone, got 'more'");
  EXPECT_EQ(refusal([](json& m) {
              m = {{"format", 2}, {"other", 0}};
            }),
            "m: format must be 1, got 2");
  EXPECT_EQ(refusal_of("/world_size", 0), "m: world_size must be at least 1, got 0");
  EXPECT_EQ(refusal_of("/step", -1),
            "m: step must be an integer from 0 to 9223372036854775807, got -1");
  EXPECT_EQ(refusal_of("/step", 1.0),
            "m: step must be an integer from 0 to 9223372036854775807, got 1.0");
  EXPECT_EQ(refusal_of("/world_size", 1LL << 31),
            "m: world_size must be an integer from 0 to 2147483647, got 2147483648");
  EXPECT_EQ(refusal_of("/values/schedule", 1), "m: values 'schedule' must be a string, got 1");
  EXPECT_EQ(refusal_of("/tensors/rows", nullptr), "m: tensors 'rows' must be an object, got null");
  EXPECT_EQ(refusal_of("/tensors/rows/dtype", "float16"),
            "m: tensors 'rows'.dtype must be float32, float64, bfloat16, int64, int32, int8 or "
            "bool, got \"float16\"");
  EXPECT_EQ(refusal_of("/tensors/rows/shape", "5"),
            "m: tensors 'rows'.shape must be an array, got \"5\"");
  EXPECT_EQ(refusal_of("/tensors/rows/shape", json::array({1, 1, 1, 1, 1, 1, 1, 1, 1})),
            "m: tensors 'rows'.shape must have at most 8 dimensions, got 9");
  EXPECT_EQ(refusal_of("/tensors/rows/shape", {1LL << 40, 1LL << 40}),
            "m: tensors 'rows'.shape must have fewer than 2^63 elements, got [1099511627776, "
            "1099511627776]");
  EXPECT_EQ(refusal_of("/tensors/rows/pieces/1/extra", 0),
            "m: tensors 'rows'.pieces[1] must have known keys alone, got 'extra'");
}

TEST(CheckpointManifest, RefusesAWrongChecksum) {
  json manifest = json::parse(to_json(example()));
  manifest["step"] = 41;
  const auto message =
      message_of<ValueError>([&] { parse_checkpoint_manifest(manifest.dump(), "m"); });
  EXPECT_TRUE(message.starts_with("m: crc32c must be ")) << message;
  EXPECT_TRUE(message.ends_with(", got " + manifest["crc32c"].dump())) << message;
}

// The example as two ranks write it: each its own files and the pieces in them.
std::vector<std::string> parts(const std::function<void(CheckpointManifest&)>& change_second) {
  std::vector<CheckpointManifest> manifests(2, example());
  for (int rank = 0; rank < 2; ++rank) {
    const auto own = "-" + std::to_string(rank);
    auto& part = manifests[static_cast<std::size_t>(rank)];
    std::erase_if(part.files, [&](const auto& file) { return !file.first.ends_with(own); });
    for (auto& [name, tensor] : part.tensors) {
      std::erase_if(tensor.pieces, [&](const auto& piece) { return !piece.file.ends_with(own); });
    }
  }
  change_second(manifests[1]);
  return {to_json(manifests[0]), to_json(manifests[1])};
}

TEST(CheckpointManifest, MergesWhatRanksWrote) {
  auto expected = example();
  std::ranges::reverse(expected.tensors["columns"].pieces);
  EXPECT_EQ(merge_checkpoint_manifests(parts([](auto&) {}), "m"), expected);
}

TEST(CheckpointManifest, MergesTensorsThatOnlySomeRanksHave) {
  auto expected = example();
  std::ranges::reverse(expected.tensors["columns"].pieces);
  expected.tensors["more"] = {.shape = {0}};
  const auto change = [](auto& second) {
    second.tensors["more"] = {.shape = {0}};
    second.tensors.erase("none");
  };
  EXPECT_EQ(merge_checkpoint_manifests(parts(change), "m"), expected);
}

TEST(CheckpointManifest, RefusesRanksThatDisagree) {
  const auto refused = [](const std::function<void(CheckpointManifest&)>& change) {
    return message_of<ValueError>([&] { merge_checkpoint_manifests(parts(change), "m"); });
  };
  const std::string other = "m: rank 1 must have the step and values of rank 0";
  EXPECT_EQ(refused([](auto& part) { part.step = 41; }), other);
  EXPECT_EQ(refused([](auto& part) { part.world_size = 3; }), other);
  EXPECT_EQ(refused([](auto& part) { part.values["more"] = ""; }), other);
  EXPECT_EQ(refused([](auto& part) {
              part.tensors["none"].shape = {0, 4};
            }),
            "m: rank 1 must have 'none' as float64 [0, 3] like the ranks before, got float64 [0, "
            "4]");
  EXPECT_EQ(refused([](auto& part) { part.tensors["none"].dtype = Dtype::kFloat32; }),
            "m: rank 1 must have 'none' as float64 [0, 3] like the ranks before, got float32 [0, "
            "3]");
  EXPECT_EQ(refused([](auto& part) { part.files["rank-0"] = {}; }),
            "m: ranks must write files of their own, rank 1 has another's");
  EXPECT_EQ(refused([](auto& part) { part.tensors["rows"].pieces.clear(); }),
            "m: tensors 'rows' must be whole in its pieces, got 8 elements in none");
}

TEST(CheckpointManifest, RefusesFilesElsewhere) {
  for (const auto* name : {"", ".", "..", "../up", "/etc/passwd", "a\\b"}) {
    const auto message = refusal([&](json& m) { m["files"][name] = m["files"]["rank-1"]; });
    EXPECT_EQ(message,
              std::string("m: files '") + name + "' must be the name of a file of the same folder");
  }
  EXPECT_EQ(refusal_of("/files/rank-1/crc32c", 1LL << 32),
            "m: files 'rank-1'.crc32c must be an integer from 0 to 4294967295, got 4294967296");
  EXPECT_EQ(refusal_of("/tensors/rows/pieces/0/file", "rank-2"),
            "m: tensors 'rows'.pieces[0] must be in one of the files, got 'rank-2'");
}

TEST(CheckpointManifest, RefusesPiecesThatAreNotEachElementOnce) {
  EXPECT_EQ(refusal_of("/tensors/rows/pieces/1/begin", {2, 0}),
            "m: tensors 'rows'.pieces[1] must not overlap another, got [2, 4] from [2, 0] and [3, "
            "4] from [0, 0]");
  EXPECT_EQ(refusal_of("/tensors/rows/pieces/1/shape", {1, 4}),
            "m: tensors 'rows' must be whole in its pieces, got 4 elements in none");
  EXPECT_EQ(refusal_of("/tensors/rows/pieces", json::array()),
            "m: tensors 'rows' must be whole in its pieces, got 20 elements in none");
  for (const json& begin : {json({4, 0}), json::array({0}), json({(1LL << 62) + (1LL << 61), 0})}) {
    const auto message = refusal_of("/tensors/rows/pieces/1/begin", begin);
    EXPECT_TRUE(
        message.starts_with("m: tensors 'rows'.pieces[1] must be a box within [5, 4], not "
                            "empty, got [2, 4] from ["))
        << message;
  }
  EXPECT_EQ(refusal_of("/tensors/rows/pieces/1/shape", {0, 4}),
            "m: tensors 'rows'.pieces[1] must be a box within [5, 4], not empty, got [0, 4] from "
            "[3, 0]");
  EXPECT_EQ(
      refusal([](json& m) {
        auto& pieces = m["tensors"]["scalar"]["pieces"];
        pieces.push_back(pieces[0]);
      }),
      "m: tensors 'scalar'.pieces[1] must not overlap another, got [] from [] and [] from []");
  EXPECT_EQ(
      refusal_of("/tensors/quarters/pieces/3/file", "rank-1"),
      "m: tensors 'quarters'.pieces[3] must be in a file of its own, got another in 'rank-1'");
}

}  // namespace
}  // namespace moegrad::checkpoint_manifest_test
