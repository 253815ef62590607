// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_files.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "framework/io/safetensors.h"
#include "framework/io/strict_json.h"
#include "framework/runtime/error.h"

namespace moegrad::tools {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::size_t kShown = 40;  // characters of a value that a message shows

}  // namespace

GoldenJson GoldenJson::read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const auto name = path.filename().string();
  check<ValueError>(file.good(), name, ": cannot be read");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto root = std::make_shared<const nlohmann::json>(parse_strict_json(text, kMaxDepth, name));
  const auto& value = *root;
  return {std::move(root), value, name, ""};
}

void GoldenJson::refuse(const std::string& required) const {
  auto value = value_->dump();
  if (value.size() > kShown) value = value.substr(0, kShown) + "...";
  throw ValueError(file_ + ": " + (keys_.empty() ? "the file" : keys_) + " must be " + required +
                   ", got " + value);
}

bool GoldenJson::has(const std::string& key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

GoldenJson GoldenJson::operator[](const std::string& key) const {
  if (!value_->is_object()) refuse("an object");
  const auto keys = keys_.empty() ? key : keys_ + "." + key;
  const auto found = value_->find(key);
  check<ValueError>(found != value_->end(), file_, ": ", keys, " is missing");
  return {root_, *found, file_, keys};
}

std::vector<std::pair<std::string, GoldenJson>> GoldenJson::items() const {
  if (!value_->is_object()) refuse("an object");
  std::vector<std::pair<std::string, GoldenJson>> items;
  for (const auto& [key, value] : value_->items()) items.emplace_back(key, (*this)[key]);
  return items;
}

std::vector<GoldenJson> GoldenJson::elements() const {
  if (!value_->is_array()) refuse("an array");
  std::vector<GoldenJson> elements;
  for (const auto& value : *value_) {
    elements.push_back({root_, value, file_, keys_ + "[" + std::to_string(elements.size()) + "]"});
  }
  return elements;
}

void GoldenJson::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : items()) {
    check<ValueError>(std::ranges::find(keys, key) != keys.end(), file_, ": ", value.keys_,
                      " is unknown");
  }
}

double GoldenJson::number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

std::int64_t GoldenJson::integer() const {
  if (!value_->is_number_integer()) refuse("an integer");
  return value_->get<std::int64_t>();
}

bool GoldenJson::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::string GoldenJson::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get<std::string>();
}

std::vector<double> GoldenJson::numbers() const {
  std::vector<double> numbers;
  for (const auto& element : elements()) numbers.push_back(element.number());
  return numbers;
}

std::vector<std::string> GoldenJson::texts() const {
  std::vector<std::string> texts;
  for (const auto& element : elements()) texts.push_back(element.text());
  return texts;
}

std::vector<std::int64_t> GoldenJson::integers() const {
  std::vector<std::int64_t> integers;
  for (const auto& element : elements()) integers.push_back(element.integer());
  return integers;
}

std::vector<std::vector<std::int64_t>> GoldenJson::rows() const {
  std::vector<std::vector<std::int64_t>> rows;
  for (const auto& element : elements()) rows.push_back(element.integers());
  return rows;
}

std::optional<double> optional_number(const GoldenJson& object, const std::string& key) {
  return object.has(key) ? std::optional(object[key].number()) : std::nullopt;
}

GoldenLosses losses_in(const GoldenJson& object) {
  object.allow_only({"loss", "loss_ce", "aux_loss"});
  return {.loss = optional_number(object, "loss"),
          .ce = optional_number(object, "loss_ce"),
          .aux = optional_number(object, "aux_loss")};
}

NamedStats stats_in(const GoldenJson& object, const std::string& key) {
  NamedStats stats;
  if (!object.has(key)) return stats;
  for (const auto& [name, value] : object[key].items()) {
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

Tensor GoldenTensors::find(const std::string& name, const Shape& shape, Dtype dtype) const {
  const auto found = std::ranges::find(tensors_, name, &NamedTensor::name);
  if (found == tensors_.end()) return {};
  read_.insert(name);
  const Tensor& tensor = found->tensor;
  check<ShapeError>(tensor.shape() == shape, name_, ": '", name, "' must be ", shape, ", got ",
                    tensor.shape());
  check<DtypeError>(tensor.dtype() == dtype, name_, ": '", name, "' must be ", dtype, ", got ",
                    tensor.dtype());
  return tensor;
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
