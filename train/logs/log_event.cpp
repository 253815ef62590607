// SPDX-License-Identifier: Apache-2.0
#include "train/logs/log_event.h"

#include "train/logs/proto_wire.h"

namespace moegrad::training {
namespace {

// The numbers of the fields, by message.
namespace event_field {
constexpr std::uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_log_field {
constexpr std::uint32_t kStatus = 1;
constexpr std::uint64_t kStart = 1;
}  // namespace session_log_field
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
  if (event.session_start) {
    ProtoWriter session;
    session.add_varint(session_log_field::kStatus, session_log_field::kStart);
    writer.add_bytes(event_field::kSessionLog, session.message());
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

}  // namespace moegrad::training
