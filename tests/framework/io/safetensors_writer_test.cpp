// SPDX-License-Identifier: Apache-2.0
#include "framework/io/safetensors_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "framework/distributed/to_local.h"
#include "framework/io/safetensors.h"
#include "framework/tensor/fill.h"
#include "tests/framework/distributed/hand_shards.h"
#include "tests/framework/io/files.h"
#include "tests/framework/io/watched_calls.h"
#include "tests/testing.h"

namespace moegrad::safetensors_writer_test {
namespace {

using namespace test;
using Entries = std::vector<SafetensorsEntry>;
using Kind = SafetensorsError::Kind;
using Metadata = std::map<std::string, std::string>;

std::string saved(const NamedTensors& tensors, const Metadata& metadata = {}) {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", tensors, metadata);
  return read_file(folder / "file");
}

SafetensorsEntry entry(std::string name, SafetensorsDtype dtype, std::vector<std::int64_t> shape) {
  return {.name = std::move(name), .shape = SafetensorsShape(shape), .dtype = dtype};
}

/// Six floats 0, 1, ..., 5 and their bytes.
Tensor six(const Shape& shape) { return Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, shape); }
const std::string kSixBytes("\0\0\0\0\0\0\200\77\0\0\0\100\0\0\100\100\0\0\200\100\0\0\240\100",
                            24);

TEST(SafetensorsWriter, WritesTheBytesOfTheReferenceImplementation) {
  EXPECT_EQ(saved({}), little_endian(8) + "{}      ");
  EXPECT_EQ(saved({}, {{"framework", "pt"}}),
            little_endian(40) + R"({"__metadata__":{"framework":"pt"}}     )");
  EXPECT_EQ(saved({{"attn.0", six({1, 2, 3})}}),
            little_endian(64) +
                R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})" + kSixBytes);
  EXPECT_EQ(saved({{"attn0", six({1, 1, 2, 3})}}),
            little_endian(72) +
                R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       )" +
                kSixBytes);
}

TEST(SafetensorsWriter, PutsMetadataFirstAndSortsTensorsByDtypeThenName) {
  const auto bytes = saved({{"b", Tensor::zeros({1})},
                            {"a", Tensor::zeros({2})},
                            {"z", Tensor::zeros({1}, Dtype::kInt64)},
                            {"c", Tensor::zeros({1}, Dtype::kBFloat16)},
                            {"empty", Tensor::zeros({0, 3})},
                            {"y", Tensor::zeros({}, Dtype::kFloat64)}},
                           {{"k", "v"}, {"j", "w"}});
  EXPECT_EQ(bytes.substr(8, bytes.find("}}", 100) - 6),
            R"({"__metadata__":{"j":"w","k":"v"},)"
            R"("z":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
            R"("y":{"dtype":"F64","shape":[],"data_offsets":[8,16]},)"
            R"("a":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[24,28]},)"
            R"("empty":{"dtype":"F32","shape":[0,3],"data_offsets":[28,28]},)"
            R"("c":{"dtype":"BF16","shape":[1],"data_offsets":[28,30]}})");
}

TEST(SafetensorsWriter, EscapesAsTheReferenceDoes) {
  const std::string key = "\"\\/\b\f\n\r\t\x01\x1f\x7f\u20ac";
  const auto bytes = saved({}, {{key, ""}});
  EXPECT_EQ(bytes.substr(8, bytes.find("}}") - 6),
            "{\"__metadata__\":{\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\u20ac\":\"\"}}");
  EXPECT_EQ(parse_safetensors_header(as_bytes(bytes), "test").metadata, (Metadata{{key, ""}}));
}

TEST(SafetensorsWriter, RoundTripsAllDtypesInPiecesOfAnyOrder) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  std::mt19937_64 random(3);
  Entries entries;
  std::map<std::string, std::string> values;
  for (std::size_t i = 0; i < kSafetensorsDtypes; ++i) {
    const auto dtype = static_cast<SafetensorsDtype>(i);
    for (const auto& shape : {std::vector<std::int64_t>{4, 1, 5, 4}, {8}, {0}, {3, 0, 2}}) {
      entries.push_back(entry("tensor." + std::to_string(97 * entries.size() % 101), dtype, shape));
      auto& bytes = values[entries.back().name];
      bytes.resize(safetensors_bytes(dtype, shape, "", ""));
      for (auto& byte : bytes) byte = static_cast<char>(random());
    }
  }
  ASSERT_EQ(values.size(), 4 * kSafetensorsDtypes);

  SafetensorsWriter writer(path, entries, {{"format", "pt"}});
  constexpr std::size_t kPiece = 7;
  std::vector<std::pair<std::string, std::size_t>> pieces;
  for (const auto& [name, bytes] : values) {
    for (std::size_t offset = 0; offset < bytes.size(); offset += kPiece) {
      pieces.emplace_back(name, offset);
    }
  }
  std::ranges::shuffle(pieces, random);
  for (const auto& [name, offset] : pieces) {
    writer.write(name, offset,
                 as_bytes(values[name])
                     .subspan(offset)
                     .first(std::min(kPiece, values[name].size() - offset)));
  }
  writer.finish();

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}}));
  ASSERT_EQ(file.entries().size(), entries.size());
  for (const auto& written : entries) {
    const auto& read = file.at(written.name);
    EXPECT_EQ(read.dtype, written.dtype);
    EXPECT_EQ(read.shape, written.shape);
    EXPECT_EQ(as_text(file.bytes(read)), values[written.name]) << written.name;
  }
  EXPECT_EQ(file.entries(), writer.entries());
}

TEST(SafetensorsWriter, SavesViewsByTheirValues) {
  const Tensor base = test::randn({4, 6}, 1, Dtype::kFloat32);
  const Tensor rows = Tensor::as_strided(base, {2, 6}, {6, 1}, 12);
  const Tensor transposed = Tensor::as_strided(base, {6, 4}, {1, 6}, 0);
  EXPECT_EQ(saved({{"w", rows}}), saved({{"w", clone(rows)}}));
  EXPECT_EQ(saved({{"w", transposed}}), saved({{"w", clone(transposed)}}));
  EXPECT_NE(saved({{"w", rows}}), saved({{"w", Tensor::as_strided(base, {2, 6}, {6, 1}, 0)}}));
}

// Ranks would write their parts under the names of the whole tensors, the last one over the others.
TEST(SafetensorsWriter, RefusesPartsOfTensors) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  const auto part_with = [](std::int64_t begin, std::int64_t end) {
    const auto spec = test::range_spec({4, 3}, begin, end);
    return test::shard_of(Tensor::ones({4, 3}), spec);
  };
  save_safetensors(path, {{"w", part_with(0, 4)}});  // all of it
  const auto before = read_file(path);
  for (const bool copied : {false, true}) {
    const Tensor part = copied ? clone(part_with(2, 4)) : part_with(2, 4);
    EXPECT_EQ(message_of<ValueError>([&] {
                save_safetensors(path, {{"b", Tensor::ones({1})}, {"w", part}});
              }),
              "safetensors: " + path.string() +
                  ": 'w' must be a whole tensor, got [2, 4) of dimension 0 of [4, 3]; "
                  "fsdp::full_state_dict gathers whole tensors, and CheckpointSaver saves shards");
  }
  EXPECT_EQ(read_file(path), before);
  save_safetensors(path, {{"w", to_local(part_with(2, 4))}});  // a part, by name
}

TEST(SafetensorsWriter, RefusesBlockedTensors) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  const Tensor nz = Tensor::empty_nz({3, 5}, {.batch = 1, .k = 3, .n = 5}, Dtype::kFloat32);
  EXPECT_EQ(message_of<LayoutError>([&] {
              save_safetensors(path, {{"w", nz}});
            }),
            "safetensors: " + path.string() + ": 'w' must be ND, got FRACTAL_NZ");
  EXPECT_EQ(folder.count(), 0);
}

TEST(SafetensorsWriter, ReplacesAFileThatIsMapped) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  const Tensor before = test::randn({100, 70}, 1), after = test::randn({3}, 2);
  save_safetensors(path, {{"w", before}});
  const SafetensorsFile mapped(path);
  // The usual way to meet this: tensors that were read from a file are changed and saved to it.
  save_safetensors(path, {{"w", after}});
  EXPECT_TRUE(test::bitwise_equal(mapped.read("w"), before));
  EXPECT_TRUE(test::bitwise_equal(SafetensorsFile(path).read("w"), after));
  EXPECT_EQ(folder.count(), 1);
}

/// What the constructor says of these entries; nothing may be left in the folder.
void expect_refused(const Entries& entries, const Metadata& metadata, Kind kind,
                    const std::string& message) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  try {
    const SafetensorsWriter writer(path, entries, metadata);
    ADD_FAILURE() << "accepted: " << message;
  } catch (const SafetensorsError& error) {
    EXPECT_EQ(error.what(), "safetensors: " + path.string() + ": " + message);
    EXPECT_EQ(error.kind(), kind) << message;
  }
  EXPECT_EQ(folder.count(), 0);
}

TEST(SafetensorsWriter, RefusesEntriesThatTheFormatDoesNotAllow) {
  using enum SafetensorsDtype;
  expect_refused({entry("a", kF32, {1}), entry("a", kU8, {2})}, {}, Kind::kDuplicateTensor,
                 "names of tensors must differ, got 'a' twice");
  expect_refused({entry("__metadata__", kF32, {1})}, {}, Kind::kReservedName,
                 "names of tensors must not be __metadata__, got one");
  expect_refused({entry("a", kF4, {3})}, {}, Kind::kPartialByte,
                 "'a' must fill whole bytes, got 12 bits for [3] of F4");
  expect_refused({entry("a", kU8, {2, -1})}, {}, Kind::kNotUnsignedInteger,
                 "shape of 'a' must hold unsigned integers, got -1");
  expect_refused({entry("a", kU8, std::vector<std::int64_t>(9, 1))}, {}, Kind::kTooManyDims,
                 "shape of 'a' must have at most 8 dimensions, got 9");
  expect_refused({entry("a", kF32, {INT64_MAX})}, {}, Kind::kSizeOverflow,
                 "size of 'a' must fit in 64 bits, got [9223372036854775807] of F32");
  const auto most = INT64_MAX / 4;  // a quarter of what bits in 64 bits would allow
  Entries large;
  for (int i = 0; i < 9; ++i) large.push_back(entry(std::to_string(i), kU8, {most}));
  expect_refused(
      large, {}, Kind::kSizeOverflow,
      "size of the data must fit in 64 bits, got 2305843009213693951 bytes more with '8'");
  expect_refused({entry("a\xff", kU8, {1})}, {}, Kind::kInvalidUtf8,
                 "header must be UTF-8, got byte 255 at 3");
  expect_refused({entry(std::string("a\0", 2), kU8, {1})}, {}, Kind::kNulCharacter,
                 "header must hold no NUL, got one at 3");
  expect_refused({}, {{"k", "\xc0"}}, Kind::kInvalidUtf8,
                 "header must be UTF-8, got byte 192 at 22");
  Metadata many;
  for (int i = 0; i <= 1024; ++i) many[std::to_string(i)];
  expect_refused({}, many, Kind::kTooMuchMetadata,
                 "__metadata__ must have at most 1024 keys, got more");
  expect_refused({}, {{"k", std::string(100'000'000, 'x')}}, Kind::kHeaderTooLong,
                 "header must have at most 100000000 bytes, got 100000032");
}

class OpenWriter : public ::testing::Test {
 protected:
  OpenWriter()
      : path_(folder_ / "file"),
        writer_(path_,
                {entry("a", SafetensorsDtype::kF32, {2}), entry("b", SafetensorsDtype::kU8, {10}),
                 entry("c", SafetensorsDtype::kU8, {0})}) {}

  void write(std::string_view name, std::uint64_t offset, std::size_t count) {
    writer_.write(name, offset, as_bytes(std::string(count, 'x')));
  }
  template <class Body>
  void expect_refused(Kind kind, const std::string& message, const Body& body) {
    try {
      body();
      ADD_FAILURE() << "accepted: " << message;
    } catch (const SafetensorsError& error) {
      EXPECT_EQ(error.what(), "safetensors: " + path_.string() + ": " + message);
      EXPECT_EQ(error.kind(), kind) << message;
    }
  }

  TemporaryFolder folder_;
  std::filesystem::path path_;
  SafetensorsWriter writer_;
};

TEST_F(OpenWriter, RefusesUnknownTensors) {
  expect_refused(Kind::kUnknownTensor, "file must have tensor 'd', got 3 others",
                 [&] { write("d", 0, 1); });
}

TEST_F(OpenWriter, RefusesBytesOutsideTheTensor) {
  expect_refused(Kind::kWriteOutOfRange, "'a' must be written within its 8 bytes, got 5 at 4",
                 [&] { write("a", 4, 5); });
  expect_refused(Kind::kWriteOutOfRange, "'a' must be written within its 8 bytes, got 0 at 9",
                 [&] { write("a", 9, 0); });
  expect_refused(Kind::kWriteOutOfRange,
                 "'a' must be written within its 8 bytes, got 2 at 18446744073709551615",
                 [&] { write("a", UINT64_MAX, 2); });
  expect_refused(Kind::kWriteOutOfRange, "'c' must be written within its 0 bytes, got 1 at 0",
                 [&] { write("c", 0, 1); });
  write("a", 8, 0);
  write("c", 0, 0);
}

TEST_F(OpenWriter, RefusesToWriteAByteTwice) {
  const auto twice = [&](std::uint64_t offset, std::size_t count, int again) {
    expect_refused(Kind::kWrittenTwice,
                   "'b' must be written once, got byte " + std::to_string(again) + " again",
                   [&] { write("b", offset, count); });
  };
  write("b", 3, 2);
  twice(3, 2, 3);
  twice(0, 4, 3);
  twice(4, 1, 4);
  twice(0, 10, 3);
  write("b", 7, 1);
  write("b", 5, 2);  // 3 to 7 are one range now
  twice(2, 8, 3);
  twice(7, 3, 7);
  write("b", 8, 2);
  twice(9, 1, 9);
  write("b", 0, 3);
  write("a", 0, 8);
  twice(0, 1, 0);
  writer_.finish();
  EXPECT_EQ(as_text(SafetensorsFile(path_).bytes(SafetensorsFile(path_).at("b"))).size(), 10U);
}

TEST_F(OpenWriter, RefusesToFinishBeforeEveryByteIsWritten) {
  const auto incomplete = [&](const std::string& what) {
    expect_refused(Kind::kIncomplete, what, [&] { writer_.finish(); });
    EXPECT_FALSE(std::filesystem::exists(path_));
  };
  incomplete("'a' must be written whole, got nothing at 0 of 8 bytes");
  write("b", 0, 9);
  incomplete("'a' must be written whole, got nothing at 0 of 8 bytes");
  write("a", 0, 7);
  incomplete("'a' must be written whole, got nothing at 7 of 8 bytes");
  write("a", 7, 1);
  incomplete("'b' must be written whole, got nothing at 9 of 10 bytes");
  write("b", 9, 1);
  writer_.finish();
  EXPECT_EQ(folder_.count(), 1);
  EXPECT_EQ(message_of<Error>([&] { writer_.finish(); }),
            "atomic_file: " + path_.string() + " must be committed once, got again");
}

TEST(SafetensorsWriter, KeepsTheEarlierFileWhenItIsDroppedOrFails) {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  write_file(path, "earlier");
  {
    SafetensorsWriter writer(path, {entry("a", SafetensorsDtype::kU8, {2})});
    writer.write("a", 0, as_bytes("x"));
    EXPECT_EQ(folder.count(), 2);
  }
  const NamedTensors tensors = {{"a", Tensor::zeros({3})}};
  for (int call = 0; call < 5; ++call) {  // N, header, data, flush, rename
    test::WatchedCalls watched;
    watched.fail(call, ENOSPC);
    EXPECT_THROW(save_safetensors(path, tensors), Error) << watched.calls();
  }
  EXPECT_EQ(folder.count(), 1);
  EXPECT_EQ(read_file(path), "earlier");
}

TEST(SafetensorsWriter, FlushesTheFileBeforeAndTheFolderAfterTheRename) {
  const TemporaryFolder folder;
  const test::WatchedCalls watched;
  save_safetensors(folder / "file", {{"a", Tensor::zeros({3})}});
  EXPECT_EQ(watched.calls(), "write write write fsync(file) rename fsync(folder)");
}

}  // namespace
}  // namespace moegrad::safetensors_writer_test
