// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "framework/io/json_node.h"
#include "tools/check_golden/golden_case.h"

namespace moegrad::tools {

// The readers that read_golden_case uses.

/// The JSON file. Messages begin with its name alone.
JsonNode read_golden_json(const std::filesystem::path& path);

/// [row][position]
using Ids = std::vector<std::vector<std::int64_t>>;
/// An array of arrays of integers.
Ids rows_in(const JsonNode& array);

/// The number under this key; empty if it is absent or null.
std::optional<double> optional_number(const JsonNode& object, const std::string& key);
GoldenLosses losses_in(const JsonNode& object);
NamedStats stats_in(const JsonNode& object, const std::string& key);

/// The tensors of a safetensors file. If a tensor does not have the shape or type that was asked
/// for, throws a ShapeError or a DtypeError that names the file.
class GoldenTensors {
 public:
  explicit GoldenTensors(const std::filesystem::path& path);

  /// The shape of the tensor of this name, if there is one.
  std::optional<Shape> shape_of(const std::string& name) const;
  /// The tensor of this name; undefined if there is none.
  Tensor find(const std::string& name, const Shape& shape, Dtype dtype = Dtype::kFloat64) const;
  /// The values of a float32 or float64 tensor as float64; undefined if there is none.
  Tensor find_float(const std::string& name, const Shape& shape) const;
  /// The rows of an int64 matrix; empty if there is none. ShapeError unless it has rows and
  /// columns.
  std::optional<Ids> find_ids(const std::string& name) const;
  /// All float32 and float64 tensors whose name begins with `prefix`, named without it.
  NamedTensors below(const std::string& prefix) const;
  GoldenLosses losses(const std::string& prefix = {}) const;
  /// ValueError for a tensor that nobody has asked for, unless its values have another precision
  /// (_f32, _f64_rope32).
  void refuse_unread() const;

 private:
  /// Null if there is none.
  const Tensor* look_up(const std::string& name) const;

  std::string name_;
  NamedTensors tensors_;
  mutable std::set<std::string> read_;
};

}  // namespace moegrad::tools
