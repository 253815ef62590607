// SPDX-License-Identifier: Apache-2.0
// Files whose header is JSON but does not describe their data.
#include <gtest/gtest.h>

#include <vector>

#include "tests/framework/io/malformed_case.h"

namespace moegrad::safetensors_malformed_entry_test {
namespace {

using Kind = SafetensorsError::Kind;
using namespace test;

/// A file of the tensor "a" with these fields.
std::string one(std::string_view fields, std::size_t data_bytes = 0) {
  return safetensors_bytes(R"({"a":{)" + std::string(fields) + "}}", data_bytes);
}

/// A file of one tensor of that dtype, shape and offsets.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets,
                   std::size_t data_bytes = 0) {
  return one(R"("dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets,
             data_bytes);
}

/// A file of U8 vectors "a", "b", ... with these offsets.
std::string vectors(const std::vector<std::pair<int, int>>& offsets, std::size_t data_bytes) {
  std::string header;
  char name = 'a';
  for (const auto& [begin, end] : offsets) {
    header += std::string{name == 'a' ? '{' : ',', '"', name, '"'} + R"(:{"dtype":"U8","shape":[)" +
              std::to_string(end - begin) + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
              std::to_string(end) + "]}";
    ++name;
  }
  return safetensors_bytes(header + "}", data_bytes);
}

std::vector<MalformedCase> structures() {
  const auto json = [](std::string_view text) { return safetensors_bytes(text); };
  const std::string needed = "'a' must have dtype, shape and data_offsets, got no ";
  const std::string entry = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  std::string keys = R"("key0":"")";
  for (int i = 1; i <= 1024; ++i) keys += ",\"key" + std::to_string(i) + "\":\"\"";
  return {
      {"MetadataTwice", json(R"({"__metadata__":{},"__metadata__":{}})"), Kind::kDuplicateMetadata,
       "header must have one __metadata__, got another"},
      {"MetadataKeyTwice", json(R"({"__metadata__":{"k":"1","\u006b":"2"}})"),
       Kind::kDuplicateMetadata, "keys of __metadata__ must differ, got 'k' twice"},
      {"MetadataArray", json(R"({"__metadata__":[]})"), Kind::kMetadataNotObject,
       "__metadata__ must be an object, got '['"},
      {"MetadataNullTwice", json(R"({"__metadata__":null,"__metadata__":null})"),
       Kind::kDuplicateMetadata, "header must have one __metadata__, got another"},
      {"MetadataWord", json(R"({"__metadata__":nul})"), Kind::kMetadataNotObject,
       "__metadata__ must be an object, got 'nul'"},
      {"MetadataLongWord", json(R"({"__metadata__":nullable})"), Kind::kInvalidJson,
       "header must have '}' at 20, got 'able'"},
      {"MetadataNumber", json(R"({"__metadata__":{"step":3}})"), Kind::kMetadataNotString,
       "__metadata__ value of 'step' must be a string, got '3'"},
      {"MetadataNested", json(R"({"__metadata__":{"a":{"b":"c"}}})"), Kind::kMetadataNotString,
       "__metadata__ value of 'a' must be a string, got '{'"},
      {"MetadataOfTooManyKeys", json(R"({"__metadata__":{)" + keys + "}}"), Kind::kTooMuchMetadata,
       "__metadata__ must have at most 1024 keys, got more"},
      {"TensorTwice", safetensors_bytes("{" + entry + "," + entry + "}", 1), Kind::kDuplicateTensor,
       "names of tensors must differ, got 'a' twice"},
      {"TensorTwiceInOtherSpelling",
       safetensors_bytes(
           "{" + entry + R"(,"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
       Kind::kDuplicateTensor, "names of tensors must differ, got 'a' twice"},
      {"EntryArray", json(R"({"a":["U8",[0],[0,0]]})"), Kind::kEntryNotObject,
       "entry of 'a' must be an object, got '['"},
      {"EntryNull", json(R"({"a":null})"), Kind::kEntryNotObject,
       "entry of 'a' must be an object, got 'null'"},
      {"EntryEmpty", one(""), Kind::kMissingField, needed + "dtype"},
      {"NoDtype", one(R"("shape":[0],"data_offsets":[0,0])"), Kind::kMissingField,
       needed + "dtype"},
      {"NoShape", one(R"("dtype":"U8","data_offsets":[0,0])"), Kind::kMissingField,
       needed + "shape"},
      {"NoOffsets", one(R"("dtype":"U8","shape":[0])"), Kind::kMissingField,
       needed + "data_offsets"},
      {"LongUnknownFieldAlone", one("\"" + std::string(100'000, 'x') + "\":1"), Kind::kMissingField,
       needed + "dtype"},
      {"UnknownFieldWithoutValue", one(R"("strides":)"), Kind::kInvalidJson,
       "header must have a value at 16, got '}'"},
      {"UnknownFieldNotJson", one(R"("strides":[1,])"), Kind::kInvalidJson,
       "header must have a value at 19, got ']'"},
      {"UnknownFieldNumber", one(R"("strides":1.)"), Kind::kInvalidJson,
       "header must have a value at 16, got '1.'"},
      {"UnknownFieldLeadingZero", one(R"("strides":01)"), Kind::kInvalidJson,
       "header must have '}' at 17, got '1'"},
      {"UnknownFieldInfinity", one(R"("strides":-Infinity)"), Kind::kInvalidJson,
       "header must have a value at 16, got '-Infinity'"},
      {"UnknownFieldTooDeep", one(R"("strides":)" + std::string(121, '[') + std::string(121, ']')),
       Kind::kTooDeep, "fields must be at most 120 levels deep, got more"},
      {"DtypeTwice", one(R"("dtype":"U8","dtype":"U8")"), Kind::kDuplicateField,
       "fields of 'a' must differ, got 'dtype' twice"},
      {"ShapeTwice", one(R"("shape":[0],"shape":[0])"), Kind::kDuplicateField,
       "fields of 'a' must differ, got 'shape' twice"},
      {"OffsetsTwice", one(R"("data_offsets":[0,0],"data_offsets":[0,0])"), Kind::kDuplicateField,
       "fields of 'a' must differ, got 'data_offsets' twice"},
      {"DtypeNumber", one(R"("dtype":3)"), Kind::kDtypeNotString,
       "dtype of 'a' must be a string, got '3'"},
      {"DtypeUnknown", tensor("F33", "[1]", "[0,4]", 4), Kind::kUnknownDtype,
       "dtype of 'a' must be one of the 22 of the format, got 'F33'"},
      {"DtypeInLowerCase", tensor("f32", "[1]", "[0,4]", 4), Kind::kUnknownDtype,
       "dtype of 'a' must be one of the 22 of the format, got 'f32'"},
      {"ShapeNumber", one(R"("shape":4)"), Kind::kShapeNotArray,
       "shape of 'a' must be an array, got '4'"},
      {"OffsetsObject", one(R"("data_offsets":{"begin":0})"), Kind::kOffsetsNotPair,
       "data_offsets of 'a' must be an array, got '{'"},
      {"OneOffset", one(R"("data_offsets":[0])"), Kind::kOffsetsNotPair,
       "data_offsets of 'a' must be two integers, got 1"},
      {"ThreeOffsets", one(R"("data_offsets":[0,4,8])"), Kind::kOffsetsNotPair,
       "data_offsets of 'a' must be two integers, got 3"},
      {"NoOffsetInArray", one(R"("data_offsets":[])"), Kind::kOffsetsNotPair,
       "data_offsets of 'a' must be two integers, got 0"},
  };
}

std::vector<MalformedCase> integers() {
  const auto shape = [](const std::string& dim) {
    return tensor("U8", "[" + dim + "]", "[0,1]", 1);
  };
  const std::string unsigned_only = "shape of 'a' must hold unsigned integers, got ";
  std::string million = "0";
  for (int i = 1; i < 1'000'000; ++i) million += ",0";
  return {
      {"NegativeDimension", shape("-1"), Kind::kNotUnsignedInteger, unsigned_only + "'-1'"},
      {"NegativeZero", shape("-0"), Kind::kNotUnsignedInteger, unsigned_only + "'-0'"},
      {"FloatDimension", shape("1.0"), Kind::kNotUnsignedInteger, unsigned_only + "'1.0'"},
      {"ExponentDimension", shape("1e0"), Kind::kNotUnsignedInteger, unsigned_only + "'1e0'"},
      {"StringDimension", shape(R"("1")"), Kind::kNotUnsignedInteger, unsigned_only + R"('"1"')"},
      {"BooleanDimension", shape("true"), Kind::kNotUnsignedInteger, unsigned_only + "'true'"},
      {"NullDimension", shape("null"), Kind::kNotUnsignedInteger, unsigned_only + "'null'"},
      {"LeadingZero", shape("01"), Kind::kNotUnsignedInteger, unsigned_only + "'01'"},
      {"NestedDimension", shape("[1]"), Kind::kNotUnsignedInteger, unsigned_only + "'['"},
      {"MillionNestedDimensions", shape(std::string(1'000'000, '[')), Kind::kNotUnsignedInteger,
       unsigned_only + "'['"},
      {"NotANumber", shape("NaN"), Kind::kInvalidJson, "header must have a value at 28, got 'NaN'"},
      {"PlusSign", shape("+1"), Kind::kInvalidJson, "header must have a value at 28, got '+1'"},
      {"DigitsWithLetters", shape("1x"), Kind::kInvalidJson, "header must have ']' at 29, got 'x'"},
      {"NegativeOffset", tensor("U8", "[1]", "[-1,0]"), Kind::kNotUnsignedInteger,
       "data_offsets of 'a' must hold unsigned integers, got '-1'"},
      {"FloatOffset", tensor("U8", "[1]", "[0,1.5]"), Kind::kNotUnsignedInteger,
       "data_offsets of 'a' must hold unsigned integers, got '1.5'"},
      {"NineDimensions", shape("1,1,1,1,1,1,1,1,1"), Kind::kTooManyDims,
       "shape of 'a' must have at most 8 dimensions, got more"},
      {"MillionDimensions", shape(million), Kind::kTooManyDims,
       "shape of 'a' must have at most 8 dimensions, got more"},
      {"DimensionAboveInt64", tensor("I32", "[2,18446744073709551614]", "[0,16]", 16),
       Kind::kIntegerTooLarge,
       "shape of 'a' must hold integers up to 9223372036854775807, got '18446744073709551614'"},
      {"DimensionOfTwoToThe63",
       tensor("U8", "[9223372036854775808,9223372036854775808,0]", "[0,0]"), Kind::kIntegerTooLarge,
       "shape of 'a' must hold integers up to 9223372036854775807, got '9223372036854775808'"},
      {"DimensionAboveUint64", shape("18446744073709551616"), Kind::kIntegerTooLarge,
       "shape of 'a' must hold integers up to 9223372036854775807, got '18446744073709551616'"},
      {"MillionDigits", shape("1" + std::string(1'000'000, '0')), Kind::kIntegerTooLarge,
       "shape of 'a' must hold integers up to 9223372036854775807, got '100000000000000000000000'"},
      {"OffsetAboveUint64", tensor("U8", "[1]", "[0,18446744073709551616]"), Kind::kIntegerTooLarge,
       "data_offsets of 'a' must hold integers up to 18446744073709551615, got "
       "'18446744073709551616'"},
  };
}

std::vector<MalformedCase> sizes() {
  const std::string most = "9223372036854775807", two_to_62 = "4611686018427387904";
  std::string shared = "{";
  for (int i = 0; i < 10; ++i) {
    shared += (i == 0 ? "" : ",") + ("\"weight_" + std::to_string(i)) +
              R"(":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  }
  return {
      {"OffsetsReversed", tensor("U8", "[1]", "[1,0]", 1), Kind::kOffsetsReversed,
       "data_offsets of 'a' must rise, got [1, 0]"},
      {"OffsetsReversedByHalfTheRange", tensor("U8", "[1]", "[18446744073709551615,0]", 1),
       Kind::kOffsetsReversed, "data_offsets of 'a' must rise, got [18446744073709551615, 0]"},
      {"OffsetsShorterThanShape", tensor("I32", "[2,2]", "[0,4]", 4), Kind::kSizeMismatch,
       "data_offsets of 'a' must span 16 bytes for [2, 2] of I32, got [0, 4]"},
      {"OffsetsLongerThanShape", tensor("I32", "[]", "[0,8]", 8), Kind::kSizeMismatch,
       "data_offsets of 'a' must span 4 bytes for [] of I32, got [0, 8]"},
      {"EmptyTensorWithBytes", tensor("I32", "[2,0]", "[0,8]", 8), Kind::kSizeMismatch,
       "data_offsets of 'a' must span 0 bytes for [2, 0] of I32, got [0, 8]"},
      {"SizeThatIsZeroIn32Bits", tensor("U8", "[65536,65536]", "[0,0]"), Kind::kSizeMismatch,
       "data_offsets of 'a' must span 4294967296 bytes for [65536, 65536] of U8, got [0, 0]"},
      {"SizeThatIsZeroIn64Bits", tensor("U8", "[4294967296,4294967296]", "[0,0]"),
       Kind::kSizeOverflow, "size of 'a' must fit in 64 bits, got [4294967296, 4294967296] of U8"},
      {"ElementsOverflow", tensor("I32", "[2," + most + "]", "[0,16]", 16), Kind::kSizeOverflow,
       "size of 'a' must fit in 64 bits, got [2, 9223372036854775807] of I32"},
      {"BitsOverflow", tensor("I32", "[" + most + "]", "[0,16]", 16), Kind::kSizeOverflow,
       "size of 'a' must fit in 64 bits, got [9223372036854775807] of I32"},
      {"OverflowBeforeZero", tensor("U8", "[" + two_to_62 + "," + two_to_62 + ",0]", "[0,0]"),
       Kind::kSizeOverflow,
       "size of 'a' must fit in 64 bits, got [4611686018427387904, 4611686018427387904, 0] of U8"},
      {"OverflowAfterZero", tensor("U8", "[0," + two_to_62 + "," + two_to_62 + "]", "[0,0]"),
       Kind::kSizeOverflow,
       "size of 'a' must fit in 64 bits, got [0, 4611686018427387904, 4611686018427387904] of U8"},
      {"ThreeHalfBytes", tensor("F4", "[1,3]", "[0,2]", 2), Kind::kPartialByte,
       "'a' must fill whole bytes, got 12 bits for [1, 3] of F4"},
      {"TwoHalfBytesInTwoBytes", tensor("F4", "[1,2]", "[0,2]", 2), Kind::kSizeMismatch,
       "data_offsets of 'a' must span 1 bytes for [1, 2] of F4, got [0, 2]"},
      {"SixBits", tensor("F6_E2M3", "[]", "[0,1]", 1), Kind::kPartialByte,
       "'a' must fill whole bytes, got 6 bits for [] of F6_E2M3"},
      {"ConsistentButPastEnd", tensor("F32", "[1000]", "[0,4000]", 16), Kind::kDataMissing,
       "data must have the 4000 bytes of its tensors, got 16"},
      {"FarPastEnd", tensor("U8", "[" + most + "]", "[0," + most + "]"), Kind::kSizeOverflow,
       "size of 'a' must fit in 64 bits, got [9223372036854775807] of U8"},
      {"HoleAtStart", vectors({{1, 4}}, 4), Kind::kHole,
       "'a' must begin at 0, after the tensors before it, got 1"},
      {"HoleInTheMiddle", vectors({{0, 4}, {5, 8}}, 8), Kind::kHole,
       "'b' must begin at 4, after the tensors before it, got 5"},
      {"HoleAtEnd", vectors({{0, 4}, {4, 6}}, 8), Kind::kDataLeftOver,
       "data must have the 6 bytes of its tensors, got 8"},
      {"OverlapByOneByte", vectors({{0, 4}, {3, 8}}, 8), Kind::kOverlap,
       "'b' must begin at 4, after the tensors before it, got 3"},
      {"TensorWithinAnother", vectors({{0, 8}, {2, 4}}, 8), Kind::kOverlap,
       "'b' must begin at 8, after the tensors before it, got 2"},
      {"EmptyTensorWithinAnother", vectors({{0, 8}, {2, 2}}, 8), Kind::kOverlap,
       "'b' must begin at 8, after the tensors before it, got 2"},
      {"EmptyTensorPastEnd", vectors({{0, 8}, {9, 9}}, 8), Kind::kHole,
       "'b' must begin at 8, after the tensors before it, got 9"},
      {"SameBytesTwice", vectors({{0, 4}, {0, 4}}, 8), Kind::kOverlap,
       "'b' must begin at 4, after the tensors before it, got 0"},
      {"TenTensorsInOnePlace", safetensors_bytes(shared + "}", 16), Kind::kOverlap,
       "'weight_1' must begin at 16, after the tensors before it, got 0"},
  };
}

class MalformedEntry : public ::testing::TestWithParam<MalformedCase> {};

TEST_P(MalformedEntry, IsRefusedWithItsKindAndMessage) { test::expect_refused(GetParam()); }

const auto case_name = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Structure, MalformedEntry, ::testing::ValuesIn(structures()), case_name);
INSTANTIATE_TEST_SUITE_P(Integer, MalformedEntry, ::testing::ValuesIn(integers()), case_name);
INSTANTIATE_TEST_SUITE_P(Size, MalformedEntry, ::testing::ValuesIn(sizes()), case_name);

}  // namespace
}  // namespace moegrad::safetensors_malformed_entry_test
