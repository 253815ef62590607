// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/check_golden/golden_case.h"

namespace moegrad::tools {

// The readers that read_golden_case uses.

/// A value within a JSON file. If a value is missing or has the wrong type, throws a ValueError
/// that names the file and the keys that lead to the value:
///
///     train.json: variants.slow.spec.lr must be a number, got "high"
class GoldenJson {
 public:
  static GoldenJson read(const std::filesystem::path& path);

  /// Whether an object has the key and its value is not null.
  bool has(const std::string& key) const;
  GoldenJson operator[](const std::string& key) const;
  /// The members of an object.
  std::vector<std::pair<std::string, GoldenJson>> items() const;
  /// The elements of an array.
  std::vector<GoldenJson> elements() const;

  /// Refuses an object that has other keys: `<file>: <keys> is unknown`.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  double number() const;
  std::int64_t integer() const;
  bool boolean() const;
  std::string text() const;
  std::vector<double> numbers() const;
  std::vector<std::string> texts() const;
  std::vector<std::int64_t> integers() const;
  /// An array of arrays of integers.
  std::vector<std::vector<std::int64_t>> rows() const;

  /// Throws: `<file>: <keys> must be <required>, got <value>`.
  [[noreturn]] void refuse(const std::string& required) const;

 private:
  GoldenJson(std::shared_ptr<const nlohmann::json> root, const nlohmann::json& value,
             std::string file, std::string keys)
      : root_(std::move(root)), value_(&value), file_(std::move(file)), keys_(std::move(keys)) {}

  std::shared_ptr<const nlohmann::json> root_;  // keeps the value alive
  const nlohmann::json* value_;
  std::string file_, keys_;
};

/// The number under this key; empty if it is absent or null.
std::optional<double> optional_number(const GoldenJson& object, const std::string& key);
GoldenLosses losses_in(const GoldenJson& object);
NamedStats stats_in(const GoldenJson& object, const std::string& key);

/// The tensors of a safetensors file. If a tensor does not have the shape or type that was asked
/// for, throws a ShapeError or a DtypeError that names the file.
class GoldenTensors {
 public:
  explicit GoldenTensors(const std::filesystem::path& path);

  /// The tensor of this name; undefined if there is none.
  Tensor find(const std::string& name, const Shape& shape, Dtype dtype = Dtype::kFloat64) const;
  /// All float32 and float64 tensors whose name begins with `prefix`, named without it.
  NamedTensors below(const std::string& prefix) const;
  GoldenLosses losses(const std::string& prefix = {}) const;
  /// ValueError for a tensor that nobody has asked for, unless its values have another precision
  /// (_f32, _f64_rope32).
  void refuse_unread() const;

 private:
  std::string name_;
  NamedTensors tensors_;
  mutable std::set<std::string> read_;
};

}  // namespace moegrad::tools
