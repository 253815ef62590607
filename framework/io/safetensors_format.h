// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "framework/runtime/error.h"
#include "framework/tensor/dtype.h"

namespace moegrad {

// Note [safetensors]
// A file is
//
//     N: 8 bytes, little endian | header: N bytes of JSON | data
//
//     {"__metadata__": {"key": "value", ...},
//      "tensor name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// with offsets counted from the start of the data. As in the reference implementation, __metadata__
// may be null, which is none, and a tensor may have further fields, which are read over. Elements
// are little endian and row-major. Every byte of the file is accounted for: sorted by offset the
// tensors follow each other without hole or overlap from 0 to the end of the file, and end - begin
// = product of shape * bits / 8. Anything else is refused with a SafetensorsError whose kind() says
// which rule was broken. White space around the header's object is read but never written, apart
// from the spaces that pad it to a multiple of 8 bytes.
//
// Where the format sets no limit, this implementation does (kMaxSafetensors... below). So even a
// hostile header takes at most twice its own size in memory; a header that contains only empty
// tensors of eight dimensions takes at most two and a quarter times. The reader also refuses a
// shape whose non-zero dimensions overflow int64 when multiplied, wherever its zeros are.
//
// Reference: https://github.com/huggingface/safetensors

inline constexpr std::string_view kSafetensorsMetadataKey = "__metadata__";
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own
inline constexpr std::size_t kMaxSafetensorsDims = 8;                     // as moegrad::Shape
inline constexpr std::size_t kMaxSafetensorsMetadata = 1024;              // keys of __metadata__
inline constexpr std::size_t kMaxSafetensorsDepth = 120;                  // of fields read over

/// The format's element types, by rising alignment.
enum class SafetensorsDtype : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};
inline constexpr std::size_t kSafetensorsDtypes = 22;

/// Bits of one element. Elements of F4 and F6 are packed without padding.
int bits_of(SafetensorsDtype dtype);

/// The format's spelling, such as "F32" or "F8_E4M3".
std::string_view to_string(SafetensorsDtype dtype);
std::ostream& operator<<(std::ostream& out, SafetensorsDtype dtype);

/// The inverse of to_string; nothing for another word.
std::optional<SafetensorsDtype> safetensors_dtype(std::string_view name);

SafetensorsDtype safetensors_dtype(Dtype dtype);
/// Nothing for the types that a Tensor does not have.
std::optional<Dtype> tensor_dtype(SafetensorsDtype dtype);

/// Dimensions in as little memory as they need: a header may have a hundred thousand shapes, with
/// one digit for each dimension.
class SafetensorsShape {
 public:
  SafetensorsShape() = default;
  SafetensorsShape(std::initializer_list<std::int64_t> dims)
      : SafetensorsShape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}
  explicit SafetensorsShape(std::span<const std::int64_t> dims);
  SafetensorsShape(const SafetensorsShape& other) : SafetensorsShape(other.dims()) {}
  SafetensorsShape(SafetensorsShape&& other) noexcept
      : dims_(std::move(other.dims_)), size_(std::exchange(other.size_, 0)) {}
  SafetensorsShape& operator=(SafetensorsShape other) noexcept {
    std::swap(dims_, other.dims_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SafetensorsShape() = default;

  std::span<const std::int64_t> dims() const { return {dims_.get(), size_}; }
  friend bool operator==(const SafetensorsShape& a, const SafetensorsShape& b);

 private:
  std::unique_ptr<std::int64_t[]> dims_;
  std::uint32_t size_ = 0;
};

/// A tensor of a file. Its bytes are [begin, end) of the data.
struct SafetensorsEntry {
  std::string name;
  [[no_unique_address]] SafetensorsShape shape = {};  // dtype takes its padding
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

static_assert(sizeof(SafetensorsEntry) == 64);

/// What is wrong with a file, or with what was asked of it, as
/// `safetensors: <path>: <requirement>, got <what>`.
class SafetensorsError final : public Error {
 public:
  enum class Kind : std::uint8_t {
    // the file as a whole
    kUnreadable,     // cannot be opened or mapped, or is not a regular file
    kFileTooShort,   // less than the 8 bytes of N
    kHeaderTooLong,  // N above the format's limit
    kHeaderPastEnd,  // 8 + N above the size of the file
    // the header as text
    kByteOrderMark,
    kInvalidUtf8,
    kNulCharacter,  // as a byte or escaped
    kLoneSurrogate,
    kInvalidJson,
    kTooDeep,  // a field that is read over
    kTextAfterHeader,
    // the header's structure
    kHeaderNotObject,
    kDuplicateMetadata,  // __metadata__ itself, or a key in it
    kMetadataNotObject,
    kMetadataNotString,
    kTooMuchMetadata,
    kDuplicateTensor,
    kEntryNotObject,
    kDuplicateField,
    kMissingField,
    kDtypeNotString,
    kUnknownDtype,
    kShapeNotArray,
    kTooManyDims,
    kOffsetsNotPair,
    kNotUnsignedInteger,
    kIntegerTooLarge,
    // the numbers
    kOffsetsReversed,
    kSizeOverflow,
    kPartialByte,  // packed elements that do not fill their last byte
    kSizeMismatch,
    kHole,
    kOverlap,
    kDataMissing,  // the tensors need more than the file has
    kDataLeftOver,
    // requests
    kUnknownTensor,
    kReservedName,
    kWriteOutOfRange,
    kWrittenTwice,
    kIncomplete  // finish() before every byte was written
  };

  SafetensorsError(Kind kind, const std::string& message) : Error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// Bytes of a tensor; SafetensorsError if the product overflows or ends within a byte. `path` and
/// `name` are for its message.
std::uint64_t safetensors_bytes(SafetensorsDtype dtype, std::span<const std::int64_t> shape,
                                const std::string& path, std::string_view name);

}  // namespace moegrad
