// SPDX-License-Identifier: Apache-2.0
// oracle_dump SEED FOLDER: runs every op of the op table, the optimizers, gradient clipping and the
// schedules on random numbers, and writes what went in and what came out to FOLDER/cases.json and
// FOLDER/tensors.safetensors. torch_oracle.py computes the same with PyTorch.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include "framework/io/safetensors.h"
#include "framework/tensor/fill.h"
#include "tests/oracle/oracle_cases.h"
#include "tests/oracle/random_samples.h"

namespace moegrad::test {
namespace {

void dump_op(const OpEntry& entry, const OpSample& sample, Dtype dtype, std::uint64_t seed,
             OracleCases& cases) {
  const auto inputs = draw_inputs(sample, dtype, seed);
  std::vector<bool> needs(inputs.size());
  if (entry.differentiable) needs = inputs_with_gradient(sample, dtype);
  const auto outcome = run_entry(entry, sample, inputs, needs, seed);
  const auto id = "ops/" + std::to_string(cases.json["ops"].size());
  cases.json["ops"].push_back({{"id", id},
                               {"op", entry.key()},
                               {"what", sample.what},
                               {"dtype", to_string(dtype)},
                               {"args", sample.args},
                               {"needs", needs},
                               {"outputs", outcome.outputs.size()}});
  cases.add(id + "/input", inputs);
  cases.add(id + "/output", outcome.outputs);
  cases.add(id + "/cotangent", draw_cotangents(outcome.outputs, seed));
  cases.add(id + "/grad", outcome.grads);
}

void dump_ops(std::uint64_t seed, OracleCases& cases) {
  std::map<std::string, OpEntry> entries;
  for (const auto& entry : op_table()) entries.emplace(entry.key(), entry);
  for (const auto dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    for (const auto& [key, entry] : entries) {
      for (const auto& sample : entry.samples) dump_op(entry, sample, dtype, seed, cases);
    }
    for (const auto& [key, sample] : random_samples(seed)) {
      dump_op(entries.at(key), sample, dtype, seed, cases);
    }
  }
}

void run(std::uint64_t seed, const std::filesystem::path& folder) {
  OracleCases cases;
  cases.json["seed"] = seed;
  dump_ops(seed, cases);
  add_optimizer_cases(seed, cases);
  add_clip_cases(seed, cases);
  add_schedule_cases(seed, cases);
  save_safetensors(folder / "tensors.safetensors", cases.tensors);
  std::ofstream(folder / "cases.json") << cases.json.dump(1) << '\n';
}

}  // namespace
}  // namespace moegrad::test

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: oracle_dump SEED FOLDER\n";
    return 2;
  }
  moegrad::test::run(std::stoull(argv[1]), argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "oracle_dump: " << error.what() << '\n';
  return 1;
}
