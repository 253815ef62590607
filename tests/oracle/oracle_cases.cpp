// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/oracle_cases.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "optim/rmsprop.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

constexpr int kSteps = 10;

TensorList random_tensors(std::uint64_t seed, Dtype dtype) {
  TensorList tensors;
  for (const Shape& shape : {Shape{5, 3}, Shape{7}, Shape{}, Shape{0, 2}, Shape{2, 3, 4}}) {
    tensors.push_back(randn(shape, seed + 1000 * tensors.size(), dtype));
  }
  return tensors;
}

using Groups = std::vector<optim::ParamGroup>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(Groups)>;

template <class Optimizer>
std::unique_ptr<optim::Optimizer> made(Groups groups) {
  return std::make_unique<Optimizer>(std::move(groups), typename Optimizer::Config());
}

/// The settings of a group, as PyTorch calls them.
optim::ParamGroup group_of(const Json& settings) {
  optim::ParamGroup group;
  const auto read = [&](const std::string& key, auto& setting) {
    if (settings.contains(key)) setting = settings[key];
  };
  read("lr", group.lr);
  read("weight_decay", group.weight_decay);
  read("eps", group.eps);
  read("amsgrad", group.amsgrad);
  read("momentum", group.momentum);
  read("nesterov", group.nesterov);
  read("alpha", group.alpha);
  read("centered", group.centered);
  read("lr_decay", group.lr_decay);
  read("initial_accumulator_value", group.initial_accumulator_value);
  if (settings.contains("betas")) {
    group.beta1 = settings["betas"][0];
    group.beta2 = settings["betas"][1];
  }
  return group;
}

/// The first two parameters are one group, the others another one. In the second half of the steps
/// all have the rate `later_lr`, if there is one.
void add_optimizer_case(const std::string& name, const MakeOptimizer& make, const Json& first,
                        const Json& second, const Json& later_lr, Dtype dtype, std::uint64_t seed,
                        OracleCases& cases) {
  const auto id = "optimizers/" + std::to_string(cases.json["optimizers"].size());
  cases.json["optimizers"].push_back({{"id", id},
                                      {"name", name},
                                      {"dtype", to_string(dtype)},
                                      {"groups", {first, second}},
                                      {"later_lr", later_lr},
                                      {"steps", kSteps}});
  const auto parameters = random_tensors(seed, dtype);
  cases.add(id + "/start", parameters);
  Groups groups = {group_of(first), group_of(second)};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    groups[i < 2 ? 0 : 1].parameters.push_back({"p" + std::to_string(i), parameters[i]});
  }
  const auto optimizer = make(groups);
  for (int step = 0; step < kSteps; ++step) {
    const auto at = id + '/' + std::to_string(step);
    if (step == kSteps / 2 && !later_lr.is_null()) optimizer->set_lr(later_lr);
    optimizer->zero_grad();
    auto grads = random_tensors(seed + 1 + static_cast<std::uint64_t>(step), dtype);
    if (step == 0 || step == 4) grads[1] = Tensor();
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) parameters[i].set_grad(clone(grads[i]));
    }
    optimizer->step();
    cases.add(at + "/grad", grads);
    cases.add(at + "/parameter", parameters);
  }
}

void add_clip_case(std::uint64_t seed, Dtype dtype, double max_norm, const std::string& norm_type,
                   OracleCases& cases) {
  const auto id = "clips/" + std::to_string(cases.json["clips"].size());
  const auto parameters = random_tensors(seed, dtype), grads = random_tensors(seed + 7, dtype);
  NamedTensors named;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    named.push_back({"p" + std::to_string(i), parameters[i]});
    if (i != 1) parameters[i].set_grad(clone(grads[i]));  // one has none
  }
  cases.add(id + "/grad", grads);
  const double norm = optim::clip_grad_norm(named, max_norm, std::stod(norm_type));
  TensorList clipped;
  for (const auto& parameter : parameters) clipped.push_back(parameter.grad());
  cases.add(id + "/clipped", clipped);
  cases.json["clips"].push_back({{"id", id},
                                 {"dtype", to_string(dtype)},
                                 {"max_norm", max_norm},
                                 {"norm_type", norm_type},
                                 {"norm", norm}});
}

}  // namespace

void OracleCases::add(const std::string& name, const TensorList& list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].defined()) tensors.push_back({name + '/' + std::to_string(i), clone(list[i])});
  }
}

void add_optimizer_cases(std::uint64_t seed, OracleCases& cases) {
  const auto adam = [](double lr, double decay, const Json& betas, double eps, bool amsgrad) {
    return Json{
        {"lr", lr}, {"weight_decay", decay}, {"betas", betas}, {"eps", eps}, {"amsgrad", amsgrad}};
  };
  const auto sgd = [](double lr, double decay, double momentum, bool nesterov) {
    return Json{
        {"lr", lr}, {"weight_decay", decay}, {"momentum", momentum}, {"nesterov", nesterov}};
  };
  const auto rmsprop = [](double lr, double decay, double alpha, double eps, double momentum,
                          bool centered) {
    return Json{{"lr", lr},   {"weight_decay", decay}, {"alpha", alpha},
                {"eps", eps}, {"momentum", momentum},  {"centered", centered}};
  };
  const auto adagrad = [](double lr, double decay, double lr_decay, double eps) {
    return Json{{"lr", lr},
                {"weight_decay", decay},
                {"lr_decay", lr_decay},
                {"eps", eps},
                {"initial_accumulator_value", 0.1}};
  };
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    const auto add = [&](const std::string& name, const MakeOptimizer& make, const Json& first,
                         const Json& second, const Json& later_lr = nullptr) {
      add_optimizer_case(name, make, first, second, later_lr, dtype, seed, cases);
    };
    for (const auto& [name, make] :
         {std::pair<std::string, MakeOptimizer>{"AdamW", made<optim::AdamW>},
          {"Adam", made<optim::Adam>}}) {
      add(name, make, adam(1e-3, 0.01, {0.9, 0.999}, 1e-8, false),
          adam(1e-3, 0.01, {0.9, 0.999}, 1e-8, false));
      add(name, make, adam(0.03, 0, {0.9, 0.95}, 1e-8, false),
          adam(0.3, 0.1, {0.8, 0.9}, 1e-6, true));
      add(name, make, adam(0.01, 0.5, {0, 0.5}, 1e-3, true),
          adam(0.02, 0, {0.5, 0.75}, 1e-3, false));
      add(name, make, adam(0.1, 0.1, {0.9, 0.95}, 1e-8, true),
          adam(0.1, 0, {0.9, 0.95}, 1e-8, false), 0.003);
    }
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        for (const bool decays : {false, true}) {
          add("SGD", made<optim::SGD>, sgd(0.1, decays ? 0.1 : 0, momentum, nesterov),
              sgd(0.01, decays ? 0.01 : 0, 0.5, !nesterov));
        }
      }
    }
    add("RMSprop", made<optim::RMSprop>, rmsprop(0.01, 0, 0.99, 1e-8, 0, false),
        rmsprop(0.02, 0.1, 0.5, 1e-3, 0.9, true));
    add("RMSprop", made<optim::RMSprop>, rmsprop(0.01, 0.1, 0.9, 1e-6, 0.5, false),
        rmsprop(0.02, 0, 0.75, 1e-2, 0, true), 0.003);
    add("Adagrad", made<optim::Adagrad>, adagrad(0.1, 0, 0, 1e-10), adagrad(0.5, 0.1, 0.25, 1e-3),
        0.2);
  }
}

void add_clip_cases(std::uint64_t seed, OracleCases& cases) {
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    for (const double max_norm : {0.0, 0.5, 3.0, 1000.0}) {
      for (const auto* const norm_type : {"1", "2", "inf"}) {
        add_clip_case(seed, dtype, max_norm, norm_type, cases);
      }
    }
  }
}

void add_schedule_cases(std::uint64_t seed, OracleCases& cases) {
  const Random random(seed, "oracle schedules");
  const auto add = [&](const std::string& name, const Json& args, const optim::Schedule& schedule) {
    Json rates = Json::array();
    for (std::int64_t step = 0; step <= 60; ++step) rates.push_back(schedule(step));
    cases.json["schedules"].push_back({{"name", name}, {"args", args}, {"rates", rates}});
  };
  for (std::uint64_t i = 0; i < 4; ++i) {
    const double lr = 0.001 + random.uniform(10 * i);
    const auto warmup = i == 0 ? 0 : random.integer(10 * i + 1, 20);
    const auto rest = 1 + random.integer(10 * i + 2, 30);
    const auto stable = random.integer(10 * i + 3, 20);
    add("constant", {{"lr", lr}}, optim::constant(lr));
    add("constant_with_warmup", {{"lr", lr}, {"warmup", warmup}},
        optim::constant_with_warmup(lr, warmup));
    add("linear_with_warmup", {{"lr", lr}, {"warmup", warmup}, {"total", warmup + rest}},
        optim::linear_with_warmup(lr, warmup, warmup + rest));
    add("polynomial_with_warmup",
        {{"lr", lr}, {"warmup", warmup}, {"total", warmup + rest}, {"power", 1.5}},
        optim::polynomial_with_warmup(lr, warmup, warmup + rest, 1.5, 0.0));
    add("cosine_with_min_lr",
        {{"lr", lr}, {"warmup", warmup}, {"total", warmup + rest}, {"min_lr_rate", 0.1}},
        optim::cosine_with_min_lr(lr, warmup, warmup + rest, 0.1));
    add("cosine_with_warmup", {{"lr", lr}, {"warmup", warmup}, {"total", warmup + rest}},
        optim::cosine_with_warmup(lr, warmup, warmup + rest));
    add("warmup_stable_decay",
        {{"lr", lr}, {"warmup", warmup}, {"stable", stable}, {"decay", rest}},
        optim::warmup_stable_decay(lr, warmup, stable, rest));
  }
}

}  // namespace moegrad::test
