// SPDX-License-Identifier: Apache-2.0
#include "tests/train/logs/event_reader.h"

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "framework/runtime/error.h"
#include "tests/framework/io/files.h"
#include "train/logs/tf_record.h"

namespace moegrad::training {
namespace {

template <class T>
T fixed(std::string_view bytes) {
  check(bytes.size() >= sizeof(T), "event_reader: must have ", sizeof(T), " bytes, got ",
        bytes.size());
  T value = {};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

struct ProtoField {
  std::uint64_t number = 0;
  std::uint64_t varint = 0;
  std::string_view bytes = {};  // of every other type
};

std::vector<ProtoField> fields_of(std::string_view message) {
  const auto take = [&message](std::uint64_t size) {
    check(size <= message.size(), "event_reader: must be a protocol buffer, got one cut short");
    const auto taken = message.substr(0, size);
    message.remove_prefix(size);
    return taken;
  };
  const auto take_varint = [&take] {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  std::vector<ProtoField> fields;
  while (!message.empty()) {
    const auto key = take_varint();
    auto& field = fields.emplace_back(ProtoField{.number = key >> 3});
    switch (key & 7) {
      case 0:
        field.varint = take_varint();
        break;
      case 1:
        field.bytes = take(8);
        break;
      case 2:
        field.bytes = take(take_varint());
        break;
      case 5:
        field.bytes = take(4);
        break;
      default:
        check(false, "event_reader: must be a protocol buffer, got wire type ", key & 7);
    }
  }
  return fields;
}

std::vector<double> doubles(std::string_view packed) {
  std::vector<double> values;
  for (; !packed.empty(); packed.remove_prefix(8)) values.push_back(fixed<double>(packed));
  return values;
}

LoggedHistogram read_histogram(std::string_view message) {
  LoggedHistogram histogram;
  for (const auto& field : fields_of(message)) {
    if (field.number == 1) histogram.min = fixed<double>(field.bytes);
    if (field.number == 2) histogram.max = fixed<double>(field.bytes);
    if (field.number == 3) histogram.num = fixed<double>(field.bytes);
    if (field.number == 4) histogram.sum = fixed<double>(field.bytes);
    if (field.number == 5) histogram.sum_squares = fixed<double>(field.bytes);
    if (field.number == 6) histogram.limits = doubles(field.bytes);
    if (field.number == 7) histogram.counts = doubles(field.bytes);
  }
  return histogram;
}

// The tag comes first in every value that EventFileWriter writes.
void read_value(std::string_view message, LogEvent& event) {
  std::string tag;
  for (const auto& field : fields_of(message)) {
    if (field.number == 1) tag = field.bytes;
    if (field.number == 2) event.scalars.push_back({tag, fixed<float>(field.bytes)});
    if (field.number == 5) event.histograms.push_back(read_histogram(field.bytes));
    if (field.number == 5) event.histograms.back().tag = tag;
  }
}

LogEvent read_event(std::string_view message) {
  LogEvent event;
  for (const auto& field : fields_of(message)) {
    if (field.number == 1) event.wall_time = fixed<double>(field.bytes);
    if (field.number == 2) event.step = static_cast<std::int64_t>(field.varint);
    if (field.number == 3) event.file_version = field.bytes;
    if (field.number == 7) event.session_start = fields_of(field.bytes).at(0).varint == 1;
    if (field.number != 5) continue;
    for (const auto& value : fields_of(field.bytes)) read_value(value.bytes, event);
  }
  return event;
}

void verify(std::string_view bytes, std::string_view checksum) {
  const auto expected = masked_crc32c(bytes), stored = fixed<std::uint32_t>(checksum);
  check(stored == expected, "event_reader: checksum of ", bytes.size(), " bytes must be ", expected,
        ", got ", stored);
}

}  // namespace

EventFile read_event_file(const std::filesystem::path& path) {
  constexpr std::size_t kHead = 12, kChecksum = 4;
  const auto text = test::read_file(path);
  std::string_view rest(text);
  EventFile file;
  for (bool first = true; rest.size() >= kHead; first = false) {
    verify(rest.substr(0, 8), rest.substr(8));
    const auto length = fixed<std::uint64_t>(rest);
    if (length > rest.size() - kHead || rest.size() - kHead - length < kChecksum) break;
    const auto record = rest.substr(kHead, length);
    verify(record, rest.substr(kHead + length));
    auto event = read_event(record);
    check(!first || event.file_version == kEventFileVersion,
          "event_reader: the first record must have the version, got '", event.file_version, "'");
    if (!first) file.events.push_back(std::move(event));
    rest.remove_prefix(kHead + length + kChecksum);
  }
  file.bytes_left_out = rest.size();
  return file;
}

}  // namespace moegrad::training
