// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/oracle_cases.h"

#include <functional>
#include <memory>

#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
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
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(Groups, const Json&)>;

std::unique_ptr<optim::Optimizer> make_adamw(Groups groups, const Json& options) {
  return std::make_unique<optim::AdamW>(
      std::move(groups),
      optim::AdamW::Config{
          .beta1 = options["betas"][0], .beta2 = options["betas"][1], .eps = options["eps"]});
}

std::unique_ptr<optim::Optimizer> make_sgd(Groups groups, const Json& options) {
  return std::make_unique<optim::SGD>(
      std::move(groups),
      optim::SGD::Config{.momentum = options["momentum"], .nesterov = options["nesterov"]});
}

// The first two parameters are one group, the others another one with its own options.
void add_optimizer_case(const std::string& name, const MakeOptimizer& make, const Json& options,
                        Dtype dtype, std::uint64_t seed, OracleCases& cases) {
  const auto id = "optimizers/" + std::to_string(cases.json["optimizers"].size());
  cases.json["optimizers"].push_back({{"id", id},
                                      {"name", name},
                                      {"dtype", to_string(dtype)},
                                      {"options", options},
                                      {"steps", kSteps}});
  const auto parameters = random_tensors(seed, dtype);
  cases.add(id + "/start", parameters);
  Groups groups(2);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    groups[i < 2 ? 0 : 1].parameters.push_back({"p" + std::to_string(i), parameters[i]});
  }
  for (std::size_t i = 0; i < 2; ++i) {
    groups[i].lr = options["lr"][i];
    groups[i].weight_decay = options["weight_decay"][i];
  }
  const auto optimizer = make(groups, options);
  for (int step = 0; step < kSteps; ++step) {
    const auto at = id + '/' + std::to_string(step);
    if (step == kSteps / 2 && options.contains("later_lr")) optimizer->set_lr(options["later_lr"]);
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
  const auto adamw = [](const Json& lr, const Json& decay, const Json& betas, double eps) {
    return Json{{"lr", lr}, {"weight_decay", decay}, {"betas", betas}, {"eps", eps}};
  };
  const auto sgd = [](const Json& lr, const Json& decay, double momentum, bool nesterov) {
    return Json{
        {"lr", lr}, {"weight_decay", decay}, {"momentum", momentum}, {"nesterov", nesterov}};
  };
  auto scheduled = adamw({0.1, 0.1}, {0.1, 0}, {0.9, 0.95}, 1e-8);
  scheduled["later_lr"] = 0.003;
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    const auto add_adamw = [&](const Json& options) {
      add_optimizer_case("AdamW", make_adamw, options, dtype, seed, cases);
    };
    add_adamw(adamw({1e-3, 1e-3}, {0.01, 0.01}, {0.9, 0.999}, 1e-8));
    add_adamw(adamw({0.03, 0.3}, {0, 0.1}, {0.9, 0.95}, 1e-8));
    add_adamw(adamw({0.01, 0.02}, {0.5, 0}, {0, 0.5}, 1e-3));
    add_adamw(scheduled);
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        for (const Json& decay : {Json{0, 0}, Json{0.1, 0.01}}) {
          add_optimizer_case("SGD", make_sgd, sgd({0.1, 0.01}, decay, momentum, nesterov), dtype,
                             seed, cases);
        }
      }
    }
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
    add("cosine_with_warmup", {{"lr", lr}, {"warmup", warmup}, {"total", warmup + rest}},
        optim::cosine_with_warmup(lr, warmup, warmup + rest));
    add("warmup_stable_decay",
        {{"lr", lr}, {"warmup", warmup}, {"stable", stable}, {"decay", rest}},
        optim::warmup_stable_decay(lr, warmup, stable, rest));
  }
}

}  // namespace moegrad::test
