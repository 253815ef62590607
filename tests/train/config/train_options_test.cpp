// SPDX-License-Identifier: Apache-2.0
#include "train/config/train_options.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/framework/io/files.h"
#include "tests/testing.h"

namespace moegrad::training::train_options_test {
namespace {

using namespace test;
using Names = std::set<std::string>;
using Words = std::vector<std::string>;

struct Parsed {
  int code = -1;  // -1 where the program would go on
  std::string out = {};
  std::string err = {};
};

Parsed parse(Words arguments, TrainConfig& config) {
  arguments.insert(arguments.begin(), "train");
  std::vector<const char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Parsed parsed;
  try {
    parsed.code =
        parse_train_config(static_cast<int>(pointers.size()), pointers.data(), config).value_or(-1);
  } catch (const Error& error) {
    parsed.code = 1;
    parsed.err = error.what();
  }
  parsed.out = ::testing::internal::GetCapturedStdout();
  parsed.err += ::testing::internal::GetCapturedStderr();
  return parsed;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

TEST(TrainOptions, AreFlagsAndUnknownOnesAreRefused) {
  TrainConfig config;
  EXPECT_EQ(parse({"--steps", "7", "--layout", "nd", "--linear_only_shard", "1"}, config).code, -1);
  EXPECT_EQ(config.optim.steps, 7);
  EXPECT_EQ(config.model.layout, Layout::kND);
  EXPECT_TRUE(config.parallel.linear_only_shard);
  EXPECT_EQ(config.command.back(), "1");
  EXPECT_EQ(parse({"--help"}, config).code, 0);
  const std::vector<Words> wrong = {{"--stepz", "7"},
                                    {"--layout", "zz"},
                                    {"--steps", "0"},
                                    {"--steps"},
                                    {"--steps", "1", "2"},
                                    {"--lr", "nan"},
                                    {"--reshard", "yes"},
                                    {"--text", "a", "--data", "b"},
                                    {"--config", "a", "--hf-model", "b"},
                                    {"--end-of-document", "0"},
                                    {"--end-of-document", "0", "--data", "a"},
                                    {"--profile-steps", "3:3"},
                                    {"--seed", "9223372036854775808"},
                                    {"--config-file", "nowhere.toml"}};
  for (const auto& words : wrong) {
    TrainConfig other;
    EXPECT_EQ(parse(words, other).code, 2) << words[0];
  }
  EXPECT_EQ(first_line(parse({"--steps", "0"}, config).err),
            "--steps: must be an integer from 1 to 1000000000, got 0");
  EXPECT_EQ(first_line(parse({"--layout", "zz"}, config).err),
            "--layout: must be nz or nd, got 'zz'");
  for (const std::string text : {"3", ":", "3:", ":3", "3:3", "4:3", "-1:3", "a:b", "1:2x", "1 :2",
                                 "0:99999999999999999999", "1:2:3"}) {
    EXPECT_EQ(first_line(parse({"--profile-steps=" + text}, config).err),
              "--profile-steps: must be a:b with 0 <= a < b, got '" + text + "'");
  }
  EXPECT_EQ(parse({"--profile-steps", "2:4"}, config).code, -1);
  EXPECT_EQ(config.output.profile_steps, (StepRange{2, 4}));
}

/// Names of the options that --help lists, but of those that are about options.
Names names_in_help() {
  TrainConfig config;
  std::istringstream lines(parse({"--help"}, config).out);
  Names names;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    auto name = line.substr(4, line.find_first_of(" ,", 4) - 4);
    std::ranges::replace(name, '-', '_');
    names.insert(name);
  }
  for (const auto* about : {"config_file", "print_config", "version"}) {
    EXPECT_EQ(names.erase(about), 1U);
  }
  return names;
}

Names keys_of(const std::map<std::string, std::string>& record) {
  Names names;
  for (const auto& [name, value] : record) names.insert(name);
  return names;
}

/// For each option arguments that give it another value than its default.
const std::vector<Words> kOtherValues = {{"--text", "a"},
                                         {"--data", "a"},
                                         {"--data-dtype", "uint32"},
                                         {"--target-mask", "b", "--data", "a"},
                                         {"--end-of-document", "1", "--data", "a", "--pack"},
                                         {"--pack"},
                                         {"--preset", "tiny"},
                                         {"--config", "a"},
                                         {"--hf-model", "a"},
                                         {"--export-hf", "a"},
                                         {"--export-dtype", "bf16", "--export-hf", "a"},
                                         {"--overfit"},
                                         {"--dry-run"},
                                         {"--world-size", "4"},
                                         {"--threads-per-rank", "2"},
                                         {"--kernels", std::string(to_string(CpuKernels::kNarrow))},
                                         {"--replicas", "2"},
                                         {"--context-parallel", "2"},
                                         {"--tensor-parallel", "2"},
                                         {"--sequence-parallel"},
                                         {"--token-parts", "2"},
                                         {"--pipeline-parallel", "2"},
                                         {"--expert-parallel", "2"},
                                         {"--collective-deadline", "61"},
                                         {"--optimizer", "muon"},
                                         {"--beta1", "0.8"},
                                         {"--beta2", "0.8"},
                                         {"--eps", "0.5"},
                                         {"--amsgrad", "true"},
                                         {"--momentum", "0.5"},
                                         {"--nesterov", "true"},
                                         {"--alpha", "0.5"},
                                         {"--centered", "true"},
                                         {"--lr-decay", "0.5"},
                                         {"--initial-accumulator-value", "0.5"},
                                         {"--beta2-decay", "-0.5"},
                                         {"--min-rms", "0.5"},
                                         {"--clip-threshold", "2"},
                                         {"--adjust", "original"},
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
                                         {"--max-skipped-steps", "3"},
                                         {"--seed", "2"},
                                         {"--loss-weights", "sqrt"},
                                         {"--grouped-matmul-nz-transpose", "0"},
                                         {"--linear-only-shard", "1"},
                                         {"--layout", "nd"},
                                         {"--expert-weights", "hf"},
                                         {"--aux-loss-coef", "0.2"},
                                         {"--aux-loss-layers", "pooled"},
                                         {"--aux-loss-tokens", "ranks"},
                                         {"--z-loss-coef", "0.1"},
                                         {"--bias-update-rate", "0.2"},
                                         {"--dtype", "fp64"},
                                         {"--wire-dtype", "bf16"},
                                         {"--reduce-dtype", "bf16"},
                                         {"--reshard", "true"},
                                         {"--prefetch", "2"},
                                         {"--recompute", "light"},
                                         {"--recompute-layers", "1"},
                                         {"--offload", "activations"},
                                         {"--offload-window", "1000"},
                                         {"--linear-cross-entropy"},
                                         {"--memory-budget", "1000000000000"},
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

std::string name_of(const Words& words) {
  auto name = words[0].substr(2);
  std::ranges::replace(name, '-', '_');
  return name;
}

TEST(TrainOptions, AreRecordedByEveryNameAndNoOther) {
  EXPECT_EQ(keys_of(record_options({})), names_in_help());
}

TEST(TrainOptions, AreComparedAtResumeUnlessTheySayWhyNot) {
  // Who takes an option out of the comparison says so here, too.
  EXPECT_EQ(keys_of(compared_options({})), (Names{"aux_loss_coef",
                                                  "aux_loss_layers",
                                                  "aux_loss_tokens",
                                                  "batch",
                                                  "bias_update_rate",
                                                  "dtype",
                                                  "expert_weights",
                                                  "lr",
                                                  "max_grad_norm",
                                                  "micro_batches",
                                                  "overfit",
                                                  "pack",
                                                  "reduce_dtype",
                                                  "schedule",
                                                  "seed",
                                                  "seq_len",
                                                  "steps",
                                                  "validation_sequences",
                                                  "warmup",
                                                  "weight_decay",
                                                  "wire_dtype",
                                                  "z_loss_coef"}));
}

Names keys_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  return keys_of(std::map<std::string, std::string>(pairs.begin(), pairs.end()));
}

bool is_setting(const std::string& name) {
  return name != "optimizer" && name != "token_parts" && name != "loss_weights" &&
         keys_of(former_options()).contains(name);
}

TEST(TrainOptions, ThatAreNewAreRecordedWhereOneOfThemIsNotAsFormerly) {
  const auto former = former_options();
  ASSERT_EQ(former.size(), 17U);
  EXPECT_EQ(former[0], (std::pair<std::string, std::string>("token_parts", "1")));
  EXPECT_EQ(former[1], (std::pair<std::string, std::string>("optimizer", "adamw")));
  EXPECT_EQ(former[3], (std::pair<std::string, std::string>("beta2", "0.95")));
  EXPECT_EQ(former[6], (std::pair<std::string, std::string>("momentum", "none")));
  EXPECT_EQ(former[16], (std::pair<std::string, std::string>("loss_weights", "token")));
  TrainConfig config;
  config.optim.settings.beta2 = 0.95;
  EXPECT_EQ(compared_options(config), compared_options({}));
  EXPECT_EQ(describe(config), describe({}));
  config.optim.settings.beta2 = 0.96;
  auto all = compared_options({});
  all.insert(former.begin(), former.end());
  all["beta2"] = "0.96";
  EXPECT_EQ(compared_options(config), all);
  EXPECT_NE(describe(config).find("  optimizer                   adamw\n"
                                  "  beta1                       0.9\n"
                                  "  beta2                       0.96\n"),
            std::string::npos);
}

/// Sets one option from the words of a command line, without asking whether the whole makes sense.
void set(TrainConfig& config, const Words& words) {
  auto options = train_options(config);
  const auto option = std::ranges::find(options, words[0].substr(2), &Option::name);
  ASSERT_NE(option, options.end()) << words[0];
  option->set(words.size() == 1 || option->type.empty() ? OptionValue(true)
                                                        : option->parse(words[1]));
}

TEST(TrainOptions, EachChangesItsOwnRecordInFull) {
  Names tried;
  const auto usual = record_options({});
  for (const auto& words : kOtherValues) {
    const auto name = name_of(words);
    tried.insert(name);
    TrainConfig config;
    set(config, words);
    const auto changed = record_options(config);
    const bool same_double = words.back() == "0.0040000000000000002";  // rounds to the default
    EXPECT_EQ(changed.at(name) == usual.at(name), same_double) << name;
    for (const auto& [other, value] : changed) {
      // These are defaults of others.
      const bool follows = (name == "grouped_matmul_nz_transpose" &&
                            (other == "layout" || other == "expert_weights")) ||
                           (name == "optimizer" && is_setting(other)) ||
                           (name == "dtype" && (other == "wire_dtype" || other == "reduce_dtype"));
      if (other != name && !follows) {
        EXPECT_EQ(value, usual.at(other)) << name << " changes " << other;
      }
    }
  }
  EXPECT_EQ(tried, names_in_help());
}

TEST(TrainOptions, ThatAreDefaultsAreRecordedAsWhatTheyComeTo) {
  TrainConfig usual, spelt_out;
  spelt_out.optim.warmup = 40;
  spelt_out.parallel.wire_dtype = Dtype::kFloat32;
  spelt_out.model.expert_weights = nn::ExpertWeights::kPretransposed;
  EXPECT_EQ(compared_options(usual), compared_options(spelt_out));
}

TEST(TrainOptions, OfTheCommandLineOutrankThoseOfTheFile) {
  const TemporaryFolder folder;
  const auto file = (folder / "run.toml").string();
  write_file(file, "lr = 0.5 # peak\nsteps = 9\nlinear_only_shard = true\n");
  TrainConfig config;
  EXPECT_EQ(parse({"--config-file", file, "--steps", "8", "--warmup", "0"}, config).code, -1);
  EXPECT_EQ(config.optim.lr, 0.5);
  EXPECT_EQ(config.optim.steps, 8);
  EXPECT_TRUE(config.parallel.linear_only_shard);
  // What excludes or needs another option does so wherever that is given.
  write_file(file, "text = 'a'\n");
  EXPECT_EQ(first_line(parse({"--config-file", file, "--data", "b"}, config).err),
            "--data excludes --text");
  EXPECT_EQ(parse({"--config-file", file, "--metrics", file}, config).err,
            "--metrics: must not be what --config-file names, got '" + file + "'");
}

TEST(TrainOptions, NameTheTraceThatNobodyNamed) {
  TrainConfig config;
  EXPECT_EQ(parse({"--profile-steps", "0:1", "--metrics", "trace.json"}, config).err,
            "--profile: must not be what --metrics names, got 'trace.json'");
}

}  // namespace
}  // namespace moegrad::training::train_options_test
