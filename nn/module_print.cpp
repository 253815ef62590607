// SPDX-License-Identifier: Apache-2.0
// A Module as text.
#include <cxxabi.h>

#include <cctype>
#include <cstdlib>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "framework/distributed/shard_runs.h"
#include "nn/module.h"

namespace moegrad::nn {
namespace {

// "ModuleList<Block>" of moegrad::nn::ModuleList<moegrad::models::Block>.
std::string class_of(const Module& module) {
  const char* const mangled = typeid(module).name();
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  const std::string_view full = status == 0 ? demangled.get() : mangled;
  std::string name;
  std::size_t word = 0;  // where the part of `name` begins that "::" would qualify
  for (std::size_t i = 0; i < full.size(); ++i) {
    if (full.substr(i).starts_with("::")) {
      name.resize(word);
      ++i;
      continue;
    }
    if (full.substr(i).starts_with("(anonymous namespace)::")) {
      i += std::string_view("(anonymous namespace)::").size() - 1;
      continue;
    }
    name += full[i];
    const bool in_word = std::isalnum(static_cast<unsigned char>(full[i])) != 0 || full[i] == '_';
    if (!in_word) word = name.size();
  }
  return name;
}

// "4 x " of a text that several children share, and the names of the first and the last.
struct Row {
  std::string first, last;
  std::string text;
  int count = 1;
};

// "layers." and 3 of "layers.3"; -1 of a name that does not end in a number.
std::pair<std::string, long> numbered(const std::string& name) {
  const auto digits = name.find_last_not_of("0123456789") + 1;
  if (digits == name.size() || name.size() - digits > 9) return {name, -1};
  return {name.substr(0, digits), std::stol(name.substr(digits))};
}

bool follows(const Row& row, const std::string& name) {
  const auto [before, number] = numbered(row.last);
  const auto [prefix, next] = numbered(name);
  return number >= 0 && prefix == before && next == number + 1;
}

std::string indented(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return result;
}

}  // namespace

/// Writes a tree of modules; it sees what Module keeps.
class ModulePrinter {
 public:
  explicit ModulePrinter(const Module& root) {
    for (const auto& slot : root.parameter_slots()) {
      const Tensor& parameter = slot.parameter();
      const bool is_first = first_names_.try_emplace(parameter.impl().get(), slot.name).second;
      if (!is_first) continue;
      const auto numel = global_shape(parameter).numel();
      parameters_ += numel;
      if (parameter.requires_grad()) trained_ += numel;
    }
    text_ = text_of(root, "");
  }

  void write(std::ostream& out) const {
    out << text_ << '\n' << parameters_ << (parameters_ == 1 ? " parameter" : " parameters");
    if (trained_ != parameters_) out << ", of which " << trained_ << " are trained";
  }

 private:
  static void append_tensor(std::ostream& out, const std::string& name, const Tensor& tensor) {
    out << name << ' ' << global_shape(tensor);
    if (tensor.dtype() != Dtype::kFloat32) out << ' ' << tensor.dtype();
  }

  std::vector<std::string> tensors_of(const Module& module, const std::string& prefix) const {
    std::vector<std::string> texts;
    for (const auto& own : module.parameters_) {
      std::ostringstream text;
      const Tensor& parameter = own.slot.parameter();
      append_tensor(text, own.slot.name, parameter);
      if (!parameter.requires_grad()) text << " frozen";
      const auto& first = first_names_.at(parameter.impl().get());
      if (first != prefix + own.slot.name) text << " tied to " << first;
      texts.push_back(text.str());
    }
    for (const auto& own : module.buffers_) {
      module.check_alive(own.alive, "buffer", own.slot.name);
      std::ostringstream text;
      if (own.slot.tensor->defined()) {
        append_tensor(text, own.slot.name, *own.slot.tensor);
      } else {
        text << own.slot.name << " undefined";
      }
      texts.push_back(text.str() + " buffer");
    }
    return texts;
  }

  std::string text_of(const Module& module, const std::string& prefix) const {
    std::vector<Row> rows;
    for (const auto& child : module.children_) {
      auto text = text_of(module.checked(child), prefix + child.name + '.');
      if (!rows.empty() && rows.back().text == text && follows(rows.back(), child.name)) {
        rows.back().last = child.name;
        ++rows.back().count;
      } else {
        rows.push_back({.first = child.name, .last = child.name, .text = std::move(text)});
      }
    }
    const auto tensors = tensors_of(module, prefix);
    std::string text = class_of(module) + '(';
    if (rows.empty()) {
      for (std::size_t i = 0; i < tensors.size(); ++i) text += (i == 0 ? "" : ", ") + tensors[i];
      return text + ')';
    }
    for (const auto& tensor : tensors) text += "\n  " + tensor;
    for (const auto& row : rows) {
      text += "\n  (" + row.first;
      if (row.count > 1) text += '-' + std::to_string(numbered(row.last).second);
      text += "): ";
      if (row.count > 1) text += std::to_string(row.count) + " x ";
      text += indented(row.text);
    }
    return text + "\n)";
  }

  std::map<const TensorImpl*, std::string> first_names_;
  std::int64_t parameters_ = 0, trained_ = 0;
  std::string text_;
};

std::ostream& operator<<(std::ostream& out, const Module& module) {
  ModulePrinter(module).write(out);
  return out;
}

}  // namespace moegrad::nn
