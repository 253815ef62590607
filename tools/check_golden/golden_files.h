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

// What read_golden_case reads with.

/// A value within a JSON file. Whatever is not as asked for is a ValueError that names the file and
/// the keys that lead to the value:
///
///     train.json: variants.slow.spec.lr must be a number, got "high"
class GoldenJson {
 public:
  static GoldenJson read(const std::filesystem::path& path);

  /// Whether an object has the key, with another value than null.
  bool has(const std::string& key) const;
  GoldenJson operator[](const std::string& key) const;
  /// Of an object.
  std::vector<std::pair<std::string, GoldenJson>> items() const;
  /// Of an array.
  std::vector<GoldenJson> elements() const;

  /// Refuses other keys of an object: `<file>: <keys> is unknown`.
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

/// The numbers under these keys; what is absent, or null, is empty.
std::optional<double> optional_number(const GoldenJson& object, const std::string& key);
GoldenLosses losses_in(const GoldenJson& object);
NamedStats stats_in(const GoldenJson& object, const std::string& key);

/// The tensors of a safetensors file. Those of another shape or type than asked for are a
/// ShapeError and a DtypeError that name the file.
class GoldenTensors {
 public:
  explicit GoldenTensors(const std::filesystem::path& path);

  /// Undefined if there is none.
  Tensor find(const std::string& name, const Shape& shape, Dtype dtype = Dtype::kFloat64) const;
  /// All whose name begins so, without it, float32 or float64.
  NamedTensors below(const std::string& prefix) const;
  GoldenLosses losses(const std::string& prefix = {}) const;
  /// ValueError for a tensor that was not asked for, unless its values are of another precision
  /// (_f32, _f64_rope32).
  void refuse_unread() const;

 private:
  std::string name_;
  NamedTensors tensors_;
  mutable std::set<std::string> read_;
};

}  // namespace moegrad::tools
