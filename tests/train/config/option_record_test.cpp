// SPDX-License-Identifier: Apache-2.0
#include "train/config/option_record.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "tests/testing.h"

namespace moegrad::training::option_record_test {
namespace {

using Names = std::set<std::string>;

/// What the parser leaves in `options`; ends the test's patience with arguments that it refuses.
std::string parse(std::vector<std::string> arguments, TrainOptions& options, int exit_code) {
  arguments.insert(arguments.begin(), "train_qwen3_moe");
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  const auto code =
      parse_train_options(static_cast<int>(pointers.size()), pointers.data(), options);
  auto printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code.value_or(-1), exit_code) << arguments.back() << printed;
  return printed;
}

/// Of every option that the command line has, as --help lists them, but those that are about
/// options.
Names names_of_the_program() {
  TrainOptions options;
  std::istringstream lines(parse({"--help"}, options, 0));
  Names names;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    auto name = line.substr(4, line.find_first_of(" ,", 4) - 4);
    std::ranges::replace(name, '-', '_');
    names.insert(name);
  }
  for (const auto* about : {"config_file", "print_config"}) EXPECT_EQ(names.erase(about), 1U);
  return names;
}

Names keys_of(const std::map<std::string, std::string>& record) {
  Names names;
  for (const auto& [name, value] : record) names.insert(name);
  return names;
}

/// For each option arguments that give it another value than its default.
const std::vector<std::vector<std::string>> kOtherValues = {
    {"--text", "a"},
    {"--data", "a"},
    {"--data-dtype", "uint32"},
    {"--end-of-document", "1", "--data", "a", "--pack"},
    {"--pack"},
    {"--preset", "tiny"},
    {"--config", "a"},
    {"--hf-model", "a"},
    {"--export-hf", "a"},
    {"--overfit"},
    {"--dry-run"},
    {"--world-size", "4"},
    {"--threads-per-rank", "2"},
    {"--collective-deadline", "61"},
    {"--steps", "501"},
    {"--micro-batches", "4"},
    {"--batch", "9"},
    {"--seq-len", "129"},
    {"--lr", "0.0040000000000000002"},
    {"--lr", "0.0040000001"},
    {"--schedule", "wsd"},
    {"--warmup", "39"},
    {"--weight-decay", "0.1000000001"},
    {"--max-grad-norm", "1.0000000001"},
    {"--seed", "2"},
    {"--grouped-matmul-nz-transpose", "0"},
    {"--linear-only-shard", "1"},
    {"--layout", "nd"},
    {"--expert-weights", "hf"},
    {"--dtype", "fp64"},
    {"--wire-dtype", "bf16"},
    {"--reduce-dtype", "bf16"},
    {"--reshard", "true"},
    {"--prefetch", "2"},
    {"--recompute-layers", "1"},
    {"--linear-cross-entropy"},
    {"--checkpoint-dir", "a"},
    {"--checkpoint-interval", "101"},
    {"--checkpoint-keep", "3"},
    {"--resume"},
    {"--metrics", "a"},
    {"--validation-interval", "1"},
    {"--tensorboard", "a"},
    {"--profile-steps", "0:1"},
    {"--profile", "a"},
    {"--prompt", "a"},
    {"--sample-bytes", "501"},
    {"--temperature", "0.7000000001"},
    {"--validation-sequences", "257"},
    {"--log-every", "2"},
    {"--log-level", "debug"}};

std::string name_of(const std::vector<std::string>& arguments) {
  auto name = arguments[0].substr(2);
  std::ranges::replace(name, '-', '_');
  return name;
}

TEST(OptionRecord, NamesEveryOptionOfTheProgramAndNoOther) {
  EXPECT_EQ(keys_of(record_options({})), names_of_the_program());
}

TEST(OptionRecord, ComparesEveryOptionThatIsNotListed) {
  const auto all = names_of_the_program();
  Names listed;
  for (const auto& [name, why] : kUncomparedOptions) {
    EXPECT_TRUE(all.contains(std::string(name))) << name << " is no option of the program";
    EXPECT_TRUE(listed.insert(std::string(name)).second) << name << " is listed twice";
  }
  Names rest;
  std::ranges::set_difference(all, listed, std::inserter(rest, rest.end()));
  EXPECT_EQ(keys_of(compared_options({})), rest);
  // Who moves an option into the list says so here, too.
  EXPECT_EQ(rest, (Names{"batch", "dtype", "expert_weights", "lr", "max_grad_norm", "micro_batches",
                         "overfit", "pack", "reduce_dtype", "schedule", "seed", "seq_len", "steps",
                         "validation_sequences", "warmup", "weight_decay", "wire_dtype"}));
}

TEST(OptionRecord, ShowsEveryChangeOfAnOptionInFull) {
  Names tried;
  const auto usual = record_options({});
  for (const auto& arguments : kOtherValues) {
    const auto name = name_of(arguments);
    tried.insert(name);
    TrainOptions options;
    parse(arguments, options, -1);
    const auto changed = record_options(options);
    const bool same_double = arguments.back() == "0.0040000000000000002";  // rounds to the default
    EXPECT_EQ(changed.at(name) == usual.at(name), same_double) << name;
    const bool listed =
        std::ranges::any_of(kUncomparedOptions, [&](const auto& o) { return o.name == name; });
    EXPECT_EQ(compared_options(options).contains(name), !listed) << name;
  }
  EXPECT_EQ(tried, names_of_the_program());
}

TEST(OptionRecord, TakesADefaultForTheValueThatItComesTo) {
  TrainOptions usual, spelt_out;
  spelt_out.warmup = 40;
  spelt_out.wire_dtype = "fp32";
  spelt_out.expert_weights = "pretransposed";
  EXPECT_EQ(compared_options(usual), compared_options(spelt_out));
}

}  // namespace
}  // namespace moegrad::training::option_record_test
