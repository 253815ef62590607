// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moegrad::training {

/// The version in the first event of a file.
inline constexpr std::string_view kEventFileVersion = "brain.Event:2";

struct LoggedScalar {
  std::string tag = {};
  float value = 0;

  bool operator==(const LoggedScalar&) const = default;
};

/// Bin i reaches from limits[i - 1] to limits[i]. The first bin begins at -infinity.
struct LoggedHistogram {
  std::string tag = {};
  double min = 0;
  double max = 0;
  double num = 0;  // of values
  double sum = 0;
  double sum_squares = 0;
  std::vector<double> limits = {};
  std::vector<double> counts = {};

  bool operator==(const LoggedHistogram&) const = default;
};

/// TensorBoard's Event, as far as a training run needs one: a file version, the start of a
/// session, or a summary.
struct LogEvent {
  double wall_time = 0;  // seconds since 1970
  std::int64_t step = 0;
  std::string file_version = {};
  bool session_start = false;  // readers drop what earlier files have from `step` on
  std::vector<LoggedScalar> scalars = {};
  std::vector<LoggedHistogram> histograms = {};

  bool operator==(const LogEvent&) const = default;
};

/// The protocol buffer of `event`.
///
/// Reference: event.proto, summary.proto and histogram.proto in tensorboard/compat/proto of
/// https://github.com/tensorflow/tensorboard
std::string to_proto(const LogEvent& event);

}  // namespace moegrad::training
