// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/io/safetensors.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::safetensors_reader_test {
namespace {

using namespace test;
using Shape64 = std::vector<std::int64_t>;

/// The header's contents as one line per tensor and metadata key.
std::string accept(std::string_view header, std::size_t data_bytes = 0) {
  const std::string bytes = safetensors_bytes(header, data_bytes);
  const auto parsed = parse_safetensors_header(test::as_bytes(bytes), "test");
  std::ostringstream out;
  for (const auto& [key, value] : parsed.metadata) out << key << '=' << value << '\n';
  for (const auto& [name, shape, dtype, begin, end] : parsed.entries) {
    out << name << ' ' << dtype << ' ' << Shape(shape.dims()) << ' ' << begin << ' ' << end << '\n';
  }
  return out.str();
}

TEST(SafetensorsReader, AcceptsWhatTheReferenceAccepts) {
  EXPECT_EQ(accept("{}"), "");
  EXPECT_EQ(accept(R"({"__metadata__":{"framework":"pt"}})"), "framework=pt\n");
  EXPECT_EQ(accept("{}\r \t\n"), "");
  EXPECT_EQ(accept("\t\n{}\r "), "");
  EXPECT_EQ(accept(R"({"test":{"dtype":"I32","shape":[2,0],"data_offsets":[0, 0]}})"),
            "test I32 [2, 0] 0 0\n");
  EXPECT_EQ(accept(R"({"test":{"dtype":"I32","shape":[],"data_offsets":[0,4]}})", 4),
            "test I32 [] 0 4\n");
  EXPECT_EQ(accept(R"({"test":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}})", 4),
            "test F32 [1] 0 4\n");
}

TEST(SafetensorsReader, TakesNullMetadataAsNone) {
  EXPECT_EQ(accept(R"({"__metadata__":null})"), "");
  EXPECT_EQ(accept(R"({"__metadata__" : null , "x":{"dtype":"U8","shape":[1],)"
                   R"("data_offsets":[0,1]}})",
                   1),
            "x U8 [1] 0 1\n");
}

TEST(SafetensorsReader, ReadsOverFurtherFieldsOfATensor) {
  EXPECT_EQ(
      accept(R"({"x":{"strides":[2, 1],"dtype":"U8","none":null,"shape":[1],"a":{"b":[{},[]]},)"
             R"("data_offsets":[0,1],"text":"\u00e9\"]}","numbers":[0,-0.5,1e+9,12E-3,true,false],)"
             R"("strides":0}})",
             1),
      "x U8 [1] 0 1\n");
  const auto deep = std::string(120, '[') + std::string(120, ']');
  EXPECT_EQ(accept(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"y":)" + deep + "}}", 1),
            "x U8 [1] 0 1\n");
}

TEST(SafetensorsReader, AcceptsWhiteSpaceBetweenAllTokens) {
  EXPECT_EQ(accept("\n{ \"__metadata__\" : { \"a\" : \"b\" , \"c\" : \"d\" } ,\t\"x\" : { \"dtype\""
                   " : \"U8\" , \"shape\" : [ 1 , 2 ] , \"data_offsets\" : [ 0 , 2 ] } } ",
                   2),
            "a=b\nc=d\nx U8 [1, 2] 0 2\n");
}

TEST(SafetensorsReader, SortsTensorsByOffset) {
  EXPECT_EQ(accept(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
                   R"("b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},)"
                   R"("c":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                   7),
            "c U8 [4] 0 4\nb U8 [0] 4 4\na U8 [3] 4 7\n");
}

TEST(SafetensorsReader, AcceptsMetadataAnywhereAndEmptyNames) {
  EXPECT_EQ(accept(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("__metadata__":{"":""}})",
                   1),
            "=\n U8 [1] 0 1\n");
}

TEST(SafetensorsReader, DecodesEscapesInNamesAndMetadata) {
  EXPECT_EQ(accept(R"({"__metadata__":{"\"\\\/\b\f\n\r\t":"\u00e9\u20AC\ud83d\uDE00\u007f"}})"),
            "\"\\/\b\f\n\r\t=\u00e9\u20ac\U0001f600\x7f\n");
  EXPECT_EQ(accept("{\"__metadata__\":{\"\u00e9\u20ac\U0001f600\U0010ffff\":\"\x7f\"}}"),
            "\u00e9\u20ac\U0001f600\U0010ffff=\x7f\n");
}

TEST(SafetensorsReader, AcceptsEightDimensionsAndTheLargestIntegers) {
  EXPECT_EQ(accept(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,2],"data_offsets":[0,2]}})", 2),
            "a U8 [1, 1, 1, 1, 1, 1, 1, 2] 0 2\n");
  EXPECT_EQ(accept(R"({"a":{"dtype":"F64","shape":[0,9223372036854775807],"data_offsets":[0,0]}})"),
            "a F64 [0, 9223372036854775807] 0 0\n");
}

TEST(SafetensorsReader, AcceptsAsManyMetadataKeysAsItAllows) {
  std::string keys = R"("0":"")";
  for (int i = 1; i < 1024; ++i) keys += ",\"" + std::to_string(i) + "\":\"\"";
  const std::string bytes = safetensors_bytes(R"({"__metadata__":{)" + keys + "}}");
  EXPECT_EQ(parse_safetensors_header(test::as_bytes(bytes), "test").metadata.size(), 1024U);
}

TEST(SafetensorsReader, PacksElementsOfLessThanAByte) {
  EXPECT_EQ(accept(R"({"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]},)"
                   R"("b":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[3,6]}})",
                   6),
            "a F4 [3, 2] 0 3\nb F6_E3M2 [4] 3 6\n");
}

TEST(SafetensorsReader, KnowsTheSpellingAndSizeOfAllDtypes) {
  const std::vector<std::pair<std::string, int>> expected = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  ASSERT_EQ(expected.size(), kSafetensorsDtypes);
  for (const auto& [name, bits] : expected) {
    const auto dtype = safetensors_dtype(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(to_string(*dtype), name);
    EXPECT_EQ(bits_of(*dtype), bits) << name;
  }
  EXPECT_EQ(to_string(SafetensorsDtype::kF8E5M2FNUZ), "F8_E5M2FNUZ");
  EXPECT_EQ(to_string(SafetensorsDtype::kU64), "U64");
}

TEST(SafetensorsReader, ReadsTheDtypesOfTensors) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  const Tensor f32 = test::randn({2, 3}, 1, Dtype::kFloat32), f64 = test::randn({5}, 2);
  const Tensor bf16 = test::randn({3, 1}, 3, Dtype::kBFloat16);
  const Tensor i64 = Tensor::from(std::vector<std::int64_t>{-1, INT64_MAX}, {2});
  const Tensor i32 = Tensor::from(std::vector<std::int32_t>{INT32_MIN, 7}, {2});
  const Tensor i8 = Tensor::from(std::vector<std::int8_t>{-128, 0, 127}, {3});
  const Tensor boolean = Tensor::from(std::vector<bool>{true, false, true}, {3});
  const Tensor empty = Tensor::zeros({0, 7});
  const Tensor scalar = Tensor::full({}, 0.5);
  save_safetensors(path, {{"f32", f32},
                          {"f64", f64},
                          {"bf16", bf16},
                          {"i64", i64},
                          {"i32", i32},
                          {"i8", i8},
                          {"boolean", boolean},
                          {"empty", empty},
                          {"scalar", scalar}});

  const SafetensorsFile file(path);
  EXPECT_TRUE(test::bitwise_equal(file.read("f32"), f32));
  EXPECT_TRUE(test::bitwise_equal(file.read("f64"), f64));
  EXPECT_TRUE(test::bitwise_equal(file.read("bf16"), bf16));
  EXPECT_TRUE(test::bitwise_equal(file.read("i64"), i64));
  EXPECT_TRUE(test::bitwise_equal(file.read("i32"), i32));
  EXPECT_TRUE(test::bitwise_equal(file.read("i8"), i8));
  EXPECT_EQ(file.at("i8").dtype, SafetensorsDtype::kI8);
  EXPECT_TRUE(test::bitwise_equal(file.read("boolean"), boolean));
  EXPECT_TRUE(test::bitwise_equal(file.read("empty"), empty));
  EXPECT_TRUE(test::bitwise_equal(file.read("scalar"), scalar));

  const NamedTensors loaded = load_safetensors(path);
  ASSERT_EQ(loaded.size(), 9U);
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    EXPECT_EQ(loaded[i].name, file.entries()[i].name);
    EXPECT_TRUE(test::bitwise_equal(loaded[i].tensor, file.read(file.entries()[i])));
  }
}

TEST(SafetensorsReader, RefusesToReadOtherDtypesAsTensors) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  write_file(path,
             safetensors_bytes(R"({"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2));
  const SafetensorsFile file(path);
  EXPECT_EQ(as_text(file.bytes(file.at("w"))), std::string("\0\1", 2));
  const auto message = "safetensors: " + path.string() +
                       ": 'w' must be F32, F64, BF16, I64, I32, I8 or BOOL to be a Tensor, got F16";
  EXPECT_EQ(message_of<DtypeError>([&] { file.read("w"); }), message);
  EXPECT_EQ(message_of<DtypeError>([&] { load_safetensors(path); }), message);
}

TEST(SafetensorsReader, FindsTensorsByName) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  write_file(path, safetensors_bytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                     R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                     3));
  SafetensorsFile original(path);
  const SafetensorsFile file = std::move(original);
  EXPECT_EQ(file.path(), path);
  ASSERT_NE(file.find("w"), nullptr);
  EXPECT_EQ(*file.find("w"), (SafetensorsEntry{"w", {1}, SafetensorsDtype::kU8, 2, 3}));
  EXPECT_EQ(as_text(file.bytes(file.at("a"))), std::string("\0\1", 2));
  EXPECT_EQ(as_text(file.bytes(file.at("w"))), "\2");
  for (const auto* const name : {"", "b", "x", "ww"}) EXPECT_EQ(file.find(name), nullptr) << name;

  const auto subject = "safetensors: " + path.string();
  EXPECT_EQ(message_of<SafetensorsError>([&] { file.at("x"); }),
            subject + ": file must have tensor 'x', got 2 others");
  const SafetensorsEntry elsewhere{"a", {2}, SafetensorsDtype::kU8, 2, 4};
  EXPECT_EQ(message_of<ValueError>([&] { file.bytes(elsewhere); }),
            subject + ": entry must lie within the 3 bytes of the data, got [2, 4]");
}

TEST(SafetensorsReader, RefusesWhatIsNoReadableFile) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto expect = [](const std::filesystem::path& path, const std::string& reason) {
    try {
      const SafetensorsFile file(path);
      ADD_FAILURE() << "accepted";
    } catch (const SafetensorsError& error) {
      EXPECT_EQ(error.what(), "safetensors: " + path.string() +
                                  ": must be a readable regular file, got " + reason);
      EXPECT_EQ(error.kind(), SafetensorsError::Kind::kUnreadable);
    }
  };
  expect(folder / "absent", "No such file or directory");
  expect(folder / "pipe" / "file", "Not a directory");
  expect(folder / "", "a folder");
  expect(pipe, "a device");
}

/// Two pages of memory, of which only the first may be touched.
class GuardedPage {
 public:
  GuardedPage() : size_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    memory_ = static_cast<char*>(
        mmap(nullptr, 2 * size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_ + size_, size_, PROT_NONE);
  }
  ~GuardedPage() { munmap(memory_, 2 * size_); }
  GuardedPage(const GuardedPage&) = delete;
  GuardedPage& operator=(const GuardedPage&) = delete;

  std::size_t size() const { return size_; }
  std::span<char> both() const { return {memory_, 2 * size_}; }
  /// `text` at the end of the first page.
  std::string_view at_end(std::string_view text) const {
    char* const place = memory_ + size_ - text.size();
    text.copy(place, text.size());
    return {place, text.size()};
  }

 private:
  std::size_t size_;
  char* memory_;
};

TEST(SafetensorsReader, TouchesNoDataToCheckTheHeader) {
  const GuardedPage page;
  std::string header = R"({"a":{"dtype":"F32","shape":[)" + std::to_string(page.size() / 4) +
                       R"(],"data_offsets":[0,)" + std::to_string(page.size()) + "]}}";
  header.resize(page.size() - 8, ' ');
  page.at_end(safetensors_bytes(header));
  const auto parsed = parse_safetensors_header(std::as_bytes(page.both()), "test");
  EXPECT_EQ(parsed.entries.size(), 1U);
}

TEST(SafetensorsReader, ReadsNothingBeyondAHeaderThatEndsAnywhere) {
  const GuardedPage page;
  const std::string header = R"({"__metadata__":{"\n":"\ud83d\ude00\u20ac"},)"
                             "\"\u20ac\U0001f600\":"
                             R"({"dtype":"U8","shape":[1,10],"data_offsets":[0,10]}})";
  for (std::size_t length = 0; length < header.size(); ++length) {
    const auto text = page.at_end(std::string_view(header).substr(0, length));
    EXPECT_THROW(parse_safetensors_header(text, 10, "test"), SafetensorsError) << text;
  }
  EXPECT_EQ(parse_safetensors_header(page.at_end(header), 10, "test").entries.size(), 1U);
}

}  // namespace
}  // namespace moegrad::safetensors_reader_test
