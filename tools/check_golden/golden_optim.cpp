// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_optim.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "framework/io/safetensors.h"
#include "framework/runtime/error.h"
#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamw.h"
#include "optim/rmsprop.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "tools/check_golden/golden_compare.h"
#include "tools/check_golden/golden_files.h"

namespace moegrad::tools {
namespace {

constexpr std::string_view kParameters = "after_20_steps.safetensors";
constexpr std::string_view kSchedules = "schedules.json";
constexpr int kSteps = 20;

template <class Made>
using MakeByName = std::map<std::string, std::function<Made>, std::less<>>;

/// What stands under `name`; ValueError, which begins with `where`, if there is nothing.
template <class Made>
const std::function<Made>& find_known(const MakeByName<Made>& known, std::string_view name,
                                      const std::string& where) {
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  std::string names;
  for (const auto& [other, make] : known) names += (names.empty() ? "" : ", ") + other;
  throw ValueError(where + " must be one of " + names + ", got '" + std::string(name) + "'");
}

// --- optimizers

using MakeOptimizer = std::unique_ptr<optim::Optimizer>(NamedTensors parameters);

template <class Optimizer>
std::function<MakeOptimizer> made(typename Optimizer::Config config) {
  return [config](NamedTensors parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), config);
  };
}

const MakeByName<MakeOptimizer>& optimizers() {
  using namespace optim;
  static const MakeByName<MakeOptimizer> known = {
      {"adamw", made<AdamW>({.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1})},
      {"adamw_amsgrad", made<AdamW>({.lr = 1e-2, .weight_decay = 0.1, .amsgrad = true})},
      {"adam", made<Adam>({.lr = 1e-2, .weight_decay = 0.1})},
      {"sgd_nesterov",
       made<SGD>({.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true})},
      {"rmsprop", made<RMSprop>({.lr = 1e-2, .momentum = 0.5})},
      {"adagrad", made<Adagrad>({.lr = 1e-2})},
      {"adafactor", made<Adafactor>({.lr = 1e-2, .weight_decay = 0.1})}};
  return known;
}

Tensor tensor_of(const Shape& shape, const std::function<double(double i)>& value) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(value(static_cast<double>(i)));
  return Tensor::from(values, shape);
}

void set_gradients(const NamedTensors& parameters, double t) {
  double k = 0;
  for (const auto& [name, parameter] : parameters) {
    parameter.set_grad(tensor_of(parameter.shape(), [&](double i) {
      return std::sin((0.37 + 0.01 * k) * i + 1.3 * t) * (1 + 0.1 * t);
    }));
    ++k;
  }
}

/// The number that `text` is the usual decimal form of.
std::optional<std::int64_t> number_in(const std::string& text) {
  std::int64_t number = -1;
  const auto* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool usual = error == std::errc() && stop == end && number >= 0;
  return usual && text == std::to_string(number) ? std::optional(number) : std::nullopt;
}

/// The expected parameters of each optimizer by their number.
std::map<std::string, std::map<std::int64_t, Tensor>> read_parameters(
    const std::filesystem::path& path) {
  const std::string file(kParameters);
  std::map<std::string, std::map<std::int64_t, Tensor>> expected;
  for (const auto& [name, tensor] : load_safetensors(path)) {
    const auto dot = name.rfind('.');
    const auto k = dot == std::string::npos ? std::nullopt : number_in(name.substr(dot + 1));
    check<ValueError>(k.has_value(), file, ": '", name,
                      "' must be an optimizer, a dot and a number");
    check<ShapeError>(tensor.numel() > 0, file, ": '", name, "' must have elements, got ",
                      tensor.shape());
    check<DtypeError>(tensor.dtype() == Dtype::kFloat64, file, ": '", name,
                      "' must be float64, got ", tensor.dtype());
    const auto optimizer = name.substr(0, dot);
    find_known(optimizers(), optimizer, file + ": an optimizer");
    expected[optimizer].emplace(*k, tensor);
  }
  check<ValueError>(!expected.empty(), file, ": at least one optimizer is needed, got none");
  // All train the same parameters, so one that has fewer has lost some.
  std::map<std::int64_t, Shape> shapes;
  for (const auto& [optimizer, parameters] : expected) {
    for (const auto& [k, tensor] : parameters) shapes.emplace(k, tensor.shape());
  }
  for (const auto& [optimizer, parameters] : expected) {
    std::int64_t next = 0;
    for (const auto& [k, shape] : shapes) {
      const auto found = parameters.find(next);
      check<ValueError>(k == next && found != parameters.end(), file, ": '", optimizer, '.', next,
                        "' is missing");
      check<ShapeError>(found->second.shape() == shape, file, ": '", optimizer, '.', next,
                        "' must be ", shape, " as with the other optimizers, got ",
                        found->second.shape());
      ++next;
    }
  }
  return expected;
}

GoldenCheck check_optimizer(const std::string& name,
                            const std::map<std::int64_t, Tensor>& expected) {
  NamedTensors parameters;
  std::string keys;
  for (const auto& [k, tensor] : expected) {
    const auto key = name + '.' + std::to_string(k);
    parameters.push_back(
        {key, tensor_of(tensor.shape(), [](double i) { return std::cos(0.21 * i); })});
    keys += (keys.empty() ? "" : ", ") + key;
  }
  const auto optimizer = optimizers().at(name)(parameters);
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(parameters, step);
    optimizer->step();
  }
  Worst worst;
  for (const auto& [k, tensor] : expected) {
    const auto& [key, parameter] = parameters[static_cast<std::size_t>(k)];
    worst.include(max_difference(parameter, tensor), key);
  }
  return worst.check("after " + std::to_string(kSteps) + " steps: " + keys, kGoldenOptim);
}

// --- schedules

/// A number of steps, or of cycles, in a name.
std::int64_t steps(double number) {
  constexpr double kMost = 1e15;
  check<ValueError>(number == std::floor(number) && number <= kMost, kSchedules,
                    ": a name must have whole numbers of steps up to 10^15, got ", number);
  return static_cast<std::int64_t>(number);
}

/// A schedule of this peak and of the numbers in its name.
using MakeSchedule = optim::Schedule(double lr, const std::vector<double>& numbers);

/// By name, with # for each number.
const MakeByName<MakeSchedule>& schedules() {
  using Numbers = const std::vector<double>&;
  static const MakeByName<MakeSchedule> known = {
      {"hf_constant_w#",
       [](double lr, Numbers n) { return optim::constant_with_warmup(lr, steps(n[0])); }},
      {"hf_linear_w#_#",
       [](double lr, Numbers n) {
         return optim::linear_with_warmup(lr, steps(n[0]), steps(n[1]));
       }},
      {"hf_cosine_w#_#",
       [](double lr, Numbers n) {
         return optim::cosine_with_warmup(lr, steps(n[0]), steps(n[1]));
       }},
      {"hf_cosine_restarts#_w#_#",
       [](double lr, Numbers n) {
         return optim::cosine_with_restarts(lr, steps(n[1]), steps(n[2]), steps(n[0]));
       }},
      {"hf_cosine_min_lr_rate#_w#_#",
       [](double lr, Numbers n) {
         return optim::cosine_with_min_lr(lr, steps(n[1]), steps(n[2]), n[0]);
       }},
      {"hf_polynomial_w#_#_p#_end#",
       [](double lr, Numbers n) {
         return optim::polynomial_with_warmup(lr, steps(n[0]), steps(n[1]), n[2], n[3]);
       }},
      {"hf_inverse_sqrt_w#",
       [](double lr, Numbers n) { return optim::inverse_sqrt(lr, steps(n[0])); }},
      {"hf_wsd_w#_d#_#", [](double lr, Numbers n) {
         return optim::warmup_stable_decay(lr, steps(n[0]), steps(n[2] - n[0] - n[1]), steps(n[1]),
                                           optim::Decay::kCosine);
       }}};
  return known;
}

/// A name with # for each number, and the numbers.
std::pair<std::string, std::vector<double>> without_numbers(std::string_view name) {
  std::pair<std::string, std::vector<double>> result;
  while (!name.empty()) {
    double number = 0;
    const bool digit = '0' <= name.front() && name.front() <= '9';
    if (!digit) {
      result.first += name.front();
      name.remove_prefix(1);
      continue;
    }
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    check<ValueError>(error == std::errc(), kSchedules, ": '", name,
                      "' must begin with a number within the range of float64");
    result.first += '#';
    result.second.push_back(number);
    name.remove_prefix(static_cast<std::size_t>(stop - name.data()));
  }
  return result;
}

GoldenCheck check_schedule(const std::string& name, double lr,
                           const std::vector<double>& expected) {
  const auto [pattern, numbers] = without_numbers(name);
  const auto make = find_known(schedules(), pattern,
                               std::string(kSchedules) + ": '" + name + "' (# for each number)");
  const auto schedule = make(lr, numbers);
  Worst worst;
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const double rate = schedule(static_cast<std::int64_t>(step));
    worst.include(std::abs(rate - expected[step]) / lr, "step " + std::to_string(step));
  }
  return worst.check("learning rates: " + name, kGoldenOptim);
}

/// Adds the names of the schedules that there are, with # for each number, to `patterns`.
std::vector<GoldenCheck> check_schedules(const std::filesystem::path& path,
                                         std::set<std::string>& patterns) {
  constexpr std::string_view kPrefix = "lr_of_steps_0_to_";
  const auto json = read_golden_json(path);
  const double lr = json["base_lr"].number();
  check<ValueError>(std::isfinite(lr) && lr > 0.0, kSchedules,
                    ": base_lr must be finite and > 0, got ", lr);
  std::vector<GoldenCheck> checks;
  for (const auto& [key, rates_of] : json.members()) {
    if (key == "base_lr") continue;
    const auto last =
        key.starts_with(kPrefix) ? number_in(key.substr(kPrefix.size())) : std::nullopt;
    check<ValueError>(last.has_value(), kSchedules, ": a key must be base_lr or ", kPrefix,
                      "N for a number N, got '", key, "'");
    for (const auto& [name, rates] : rates_of.members()) {
      const auto expected = rates.list(&JsonNode::number);
      check<ValueError>(std::ssize(expected) - 1 == *last, kSchedules, ": '", name,
                        "' must have the rates of steps 0 to ", *last, ", got ", expected.size());
      checks.push_back(check_schedule(name, lr, expected));
      patterns.insert(without_numbers(name).first);
    }
  }
  check<ValueError>(!checks.empty(), kSchedules, ": at least one schedule is needed, got none");
  return checks;
}

}  // namespace

GoldenOptim check_golden_optim(const std::filesystem::path& folder) {
  GoldenOptim result;
  if (exists(folder / kParameters)) {
    const auto expected = read_parameters(folder / kParameters);
    for (const auto& [name, parameters] : expected) {
      result.checks.push_back(check_optimizer(name, parameters));
    }
    for (const auto& [name, make] : optimizers()) {
      if (!expected.contains(name))
        result.missing.push_back(std::string(kParameters) + ": " + name);
    }
  } else {
    result.missing.emplace_back(kParameters);
  }
  if (exists(folder / kSchedules)) {
    std::set<std::string> patterns;
    for (auto& check : check_schedules(folder / kSchedules, patterns)) {
      result.checks.push_back(std::move(check));
    }
    for (const auto& [pattern, make] : schedules()) {
      if (!patterns.contains(pattern)) {
        result.missing.push_back(std::string(kSchedules) + ": " + pattern);
      }
    }
  } else {
    result.missing.emplace_back(kSchedules);
  }
  return result;
}

}  // namespace moegrad::tools
