// SPDX-License-Identifier: Apache-2.0
#include "framework/io/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <tuple>
#include <utility>

#include "framework/io/safetensors_text.h"
#include "framework/runtime/utf8.h"

namespace moegrad {
namespace {

using Kind = SafetensorsError::Kind;

/// The entries at the positions where the reference implementation puts them.
std::vector<SafetensorsEntry> lay_out(std::vector<SafetensorsEntry> entries,
                                      const std::string& path) {
  std::ranges::sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  std::uint64_t offset = 0;
  for (auto& entry : entries) {
    if (entry.name == kSafetensorsMetadataKey) {
      refuse(Kind::kReservedName, path, "names of tensors must not be ", kSafetensorsMetadataKey,
             ", got one");
    }
    if (entry.shape.dims().size() > kMaxSafetensorsDims) {
      refuse(Kind::kTooManyDims, path, "shape of ", in_quotes(entry.name), " must have at most ",
             kMaxSafetensorsDims, " dimensions, got ", entry.shape.dims().size());
    }
    for (const auto dim : entry.shape.dims()) {
      if (dim < 0) {
        refuse(Kind::kNotUnsignedInteger, path, "shape of ", in_quotes(entry.name),
               " must hold unsigned integers, got ", dim);
      }
    }
    entry.begin = offset;
    const auto bytes = safetensors_bytes(entry.dtype, entry.shape.dims(), path, entry.name);
    if (__builtin_add_overflow(offset, bytes, &offset)) {
      refuse(Kind::kSizeOverflow, path, "size of the data must fit in 64 bits, got ", bytes,
             " bytes more with ", in_quotes(entry.name));
    }
    entry.end = offset;
  }
  return entries;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<SafetensorsEntry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path.string()), file_(path) {
  entries = lay_out(std::move(entries), path_);
  data_bytes_ = entries.empty() ? 0 : entries.back().end;
  const std::string text = format_safetensors_header(entries, metadata);
  // The reader's rules decide whether the names and the metadata are sound.
  header_ = parse_safetensors_header(text, data_bytes_, path_);
  const auto length = std::bit_cast<std::array<std::byte, 8>>(std::uint64_t{text.size()});
  file_.write_at(0, length);
  file_.write_at(length.size(), std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(std::string_view name, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  const auto* const entry = header_.find(name);
  if (entry == nullptr) {
    refuse(Kind::kUnknownTensor, path_, "file must have tensor ", in_quotes(name), ", got ",
           entries().size(), " others");
  }
  if (offset > entry->bytes() || bytes.size() > entry->bytes() - offset) {
    refuse(Kind::kWriteOutOfRange, path_, in_quotes(name), " must be written within its ",
           entry->bytes(), " bytes, got ", bytes.size(), " at ", offset);
  }
  if (bytes.empty()) return;
  note_written(*entry, entry->begin + offset, entry->begin + offset + bytes.size());
  file_.write_at(header_.data_begin + entry->begin + offset, bytes);
}

void SafetensorsWriter::note_written(const SafetensorsEntry& entry, std::uint64_t begin,
                                     std::uint64_t end) {
  auto next = written_.lower_bound(begin);
  auto before = next == written_.begin() ? written_.end() : std::prev(next);
  const bool touches_next = next != written_.end() && next->first < end;
  const bool touches_before = before != written_.end() && before->second > begin;
  if (touches_next || touches_before) {
    refuse(Kind::kWrittenTwice, path_, in_quotes(entry.name), " must be written once, got byte ",
           (touches_before ? begin : next->first) - entry.begin, " again");
  }
  if (next != written_.end() && next->first == end) {
    end = next->second;
    written_.erase(next);
  }
  if (before != written_.end() && before->second == begin) {
    before->second = end;
  } else {
    written_.emplace(begin, end);
  }
}

void SafetensorsWriter::finish() {
  const auto done = written_.empty() || written_.begin()->first > 0 ? 0 : written_.begin()->second;
  if (done < data_bytes_) {
    const auto missing =
        std::ranges::find_if(entries(), [&](const auto& entry) { return entry.end > done; });
    refuse(Kind::kIncomplete, path_, in_quotes(missing->name),
           " must be written whole, got nothing at ", done - missing->begin, " of ",
           missing->bytes(), " bytes");
  }
  file_.commit();
}

}  // namespace moegrad
