// SPDX-License-Identifier: Apache-2.0
#include "train/logs/log_event.h"

#include "train/logs/proto_wire.h"

namespace moegrad::training {
namespace {

// The numbers of the fields, by message.
namespace event_field {
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary_field {
constexpr std::uint32_t kValue = 1;
}
namespace value_field {
constexpr std::uint32_t kTag = 1, kSimpleValue = 2, kHistogram = 5;
}
namespace histogram_field {
constexpr std::uint32_t kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kBucketLimit = 6,
                        kBucket = 7;
}

std::string to_proto(const LoggedScalar& scalar) {
  ProtoWriter value;
  value.add_bytes(value_field::kTag, scalar.tag);
  value.add_float(value_field::kSimpleValue, scalar.value);
  return value.message();
}

std::string to_proto(const LoggedHistogram& logged) {
  ProtoWriter histogram;
  histogram.add_double(histogram_field::kMin, logged.min);
  histogram.add_double(histogram_field::kMax, logged.max);
  histogram.add_double(histogram_field::kNum, logged.num);
  histogram.add_double(histogram_field::kSum, logged.sum);
  histogram.add_double(histogram_field::kSumSquares, logged.sum_squares);
  histogram.add_doubles(histogram_field::kBucketLimit, logged.limits);
  histogram.add_doubles(histogram_field::kBucket, logged.counts);
  ProtoWriter value;
  value.add_bytes(value_field::kTag, logged.tag);
  value.add_bytes(value_field::kHistogram, histogram.message());
  return value.message();
}

void read_histogram(std::string_view message, const std::string& who, LoggedHistogram& histogram) {
  ProtoReader fields(message, who);
  while (fields.next()) {
    switch (fields.field()) {
      case histogram_field::kMin:
        histogram.min = fields.float64();
        break;
      case histogram_field::kMax:
        histogram.max = fields.float64();
        break;
      case histogram_field::kNum:
        histogram.num = fields.float64();
        break;
      case histogram_field::kSum:
        histogram.sum = fields.float64();
        break;
      case histogram_field::kSumSquares:
        histogram.sum_squares = fields.float64();
        break;
      case histogram_field::kBucketLimit:
        fields.append_doubles(histogram.limits);
        break;
      case histogram_field::kBucket:
        fields.append_doubles(histogram.counts);
        break;
    }
  }
}

void read_value(std::string_view message, const std::string& who, LogEvent& event) {
  std::string tag;
  LoggedScalar scalar;
  LoggedHistogram histogram;
  std::uint64_t kind = 0;  // the field that holds the value
  ProtoReader fields(message, who);
  while (fields.next()) {
    switch (fields.field()) {
      case value_field::kTag:
        tag = fields.bytes();
        break;
      case value_field::kSimpleValue:
        kind = fields.field();
        scalar.value = fields.float32();
        break;
      case value_field::kHistogram:
        kind = fields.field();
        read_histogram(fields.bytes(), who, histogram);
        break;
    }
  }
  if (kind == value_field::kSimpleValue) {
    scalar.tag = std::move(tag);
    event.scalars.push_back(std::move(scalar));
  } else if (kind == value_field::kHistogram) {
    histogram.tag = std::move(tag);
    event.histograms.push_back(std::move(histogram));
  }
}

}  // namespace

std::string to_proto(const LogEvent& event) {
  ProtoWriter writer;
  writer.add_double(event_field::kWallTime, event.wall_time);
  // As a negative number: 64 bits of two's complement. TensorFlow leaves step 0 out.
  if (event.step != 0) {
    writer.add_varint(event_field::kStep, static_cast<std::uint64_t>(event.step));
  }
  if (!event.file_version.empty()) {
    writer.add_bytes(event_field::kFileVersion, event.file_version);
    return writer.message();
  }
  ProtoWriter summary;
  for (const auto& scalar : event.scalars) {
    summary.add_bytes(summary_field::kValue, to_proto(scalar));
  }
  for (const auto& histogram : event.histograms) {
    summary.add_bytes(summary_field::kValue, to_proto(histogram));
  }
  writer.add_bytes(event_field::kSummary, summary.message());
  return writer.message();
}

LogEvent log_event_from_proto(std::string_view message, const std::string& who) {
  LogEvent event;
  ProtoReader fields(message, who);
  while (fields.next()) {
    switch (fields.field()) {
      case event_field::kWallTime:
        event.wall_time = fields.float64();
        break;
      case event_field::kStep:
        event.step = static_cast<std::int64_t>(fields.varint());
        break;
      case event_field::kFileVersion:
        event.file_version = fields.bytes();
        break;
      case event_field::kSummary: {
        ProtoReader summary(fields.bytes(), who);
        while (summary.next()) {
          if (summary.field() == summary_field::kValue) read_value(summary.bytes(), who, event);
        }
        break;
      }
    }
  }
  return event;
}

}  // namespace moegrad::training
