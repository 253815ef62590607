// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_files.h"

#include <algorithm>
#include <cstdint>

#include "framework/io/input_file.h"
#include "framework/io/safetensors.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"

namespace moegrad::tools {

JsonNode read_golden_json(const std::filesystem::path& path) {
  constexpr int kMaxDepth = 16;
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
  const auto name = path.filename().string();
  return JsonNode::parse(read_input_file(path, name, kMostBytes), kMaxDepth, name);
}

Ids rows_in(const JsonNode& array) {
  return array.list([](const JsonNode& row) { return row.list(&JsonNode::integer); });
}

std::optional<double> optional_number(const JsonNode& object, const std::string& key) {
  return object.has(key) ? std::optional(object[key].number()) : std::nullopt;
}

GoldenLosses losses_in(const JsonNode& object) {
  object.allow_only({"loss", "loss_ce", "aux_loss"});
  return {.loss = optional_number(object, "loss"),
          .ce = optional_number(object, "loss_ce"),
          .aux = optional_number(object, "aux_loss")};
}

NamedStats stats_in(const JsonNode& object, const std::string& key) {
  NamedStats stats;
  if (!object.has(key)) return stats;
  for (const auto& [name, value] : object[key].members()) {
    value.allow_only({"l2", "sum", "max_abs", "dot_cos"});
    stats[name] = {.l2 = value["l2"].number(),
                   .sum = value["sum"].number(),
                   .max_abs = value["max_abs"].number(),
                   .dot_cos = value["dot_cos"].number()};
  }
  return stats;
}

GoldenTensors::GoldenTensors(const std::filesystem::path& path)
    : name_(path.filename().string()), tensors_(load_safetensors(path)) {}

const Tensor* GoldenTensors::look_up(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &NamedTensor::name);
  if (found == tensors_.end()) return nullptr;
  read_.insert(name);
  return &found->tensor;
}

Tensor GoldenTensors::find(const std::string& name, const Shape& shape, Dtype dtype) const {
  const auto* const tensor = look_up(name);
  if (tensor == nullptr) return {};
  check<ShapeError>(tensor->shape() == shape, name_, ": '", name, "' must be ", shape, ", got ",
                    tensor->shape());
  check<DtypeError>(tensor->dtype() == dtype, name_, ": '", name, "' must be ", dtype, ", got ",
                    tensor->dtype());
  return *tensor;
}

std::optional<Shape> GoldenTensors::shape_of(const std::string& name) const {
  const auto* const tensor = look_up(name);
  return tensor == nullptr ? std::nullopt : std::optional(tensor->shape());
}

Tensor GoldenTensors::find_float(const std::string& name, const Shape& shape) const {
  const auto* const tensor = look_up(name);
  if (tensor == nullptr) return {};
  const bool rounded = tensor->dtype() == Dtype::kFloat32;
  return to_dtype(find(name, shape, rounded ? Dtype::kFloat32 : Dtype::kFloat64), Dtype::kFloat64);
}

std::optional<Ids> GoldenTensors::find_ids(const std::string& name) const {
  const auto* const tensor = look_up(name);
  if (tensor == nullptr) return std::nullopt;
  const bool is_matrix = tensor->ndim() == 2 && tensor->numel() > 0;
  check<ShapeError>(is_matrix, name_, ": '", name, "' must be a matrix of tokens, got ",
                    tensor->shape());
  check<DtypeError>(tensor->dtype() == Dtype::kInt64, name_, ": '", name, "' must be int64, got ",
                    tensor->dtype());
  Ids rows;
  const auto ids = tensor->data<std::int64_t>();
  const auto columns = static_cast<std::size_t>(tensor->dim(1));
  for (std::size_t at = 0; at < ids.size(); at += columns) {
    rows.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at),
                      ids.begin() + static_cast<std::ptrdiff_t>(at + columns));
  }
  return rows;
}

NamedTensors GoldenTensors::below(const std::string& prefix) const {
  NamedTensors below;
  for (const auto& [name, tensor] : tensors_) {
    if (!name.starts_with(prefix)) continue;
    read_.insert(name);
    check<DtypeError>(is_floating(tensor.dtype()), name_, ": '", name,
                      "' must be float32 or float64, got ", tensor.dtype());
    below.push_back({name.substr(prefix.size()), tensor});
  }
  return below;
}

GoldenLosses GoldenTensors::losses(const std::string& prefix) const {
  const auto scalar = [&](const std::string& name) {
    const Tensor tensor = find(prefix + name, {1});
    return tensor.defined() ? std::optional(tensor.item()) : std::nullopt;
  };
  return {.loss = scalar("loss_f64"), .ce = scalar("loss_ce_f64"), .aux = scalar("aux_loss_f64")};
}

void GoldenTensors::refuse_unread() const {
  for (const auto& [name, tensor] : tensors_) {
    const auto stem = name.substr(0, name.find_last_not_of("0123456789") + 1);
    const bool other_precision =
        stem.ends_with("_f32.") || name.ends_with("_f32") || name.ends_with("_f64_rope32");
    check<ValueError>(other_precision || read_.contains(name), name_, ": '", name, "' is unknown");
  }
}

}  // namespace moegrad::tools
