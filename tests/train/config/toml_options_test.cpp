// SPDX-License-Identifier: Apache-2.0
#include "train/config/toml_options.h"

#include <algorithm>
#include <string>
#include <vector>

#include "framework/runtime/random.h"
#include "framework/runtime/utf8.h"
#include "tests/framework/io/files.h"
#include "tests/testing.h"
#include "train/config/train_options.h"

namespace moegrad::training::toml_options_test {
namespace {

using namespace test;

/// A sequence of random choices.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed, "toml_options_test") {}

  std::int64_t below(std::int64_t n) { return random_.integer(next_++, n); }
  double uniform() { return random_.uniform(next_++); }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

/// Texts that a file format may trip over, and random UTF-8.
std::string hostile_text(Draw& draw) {
  static const std::vector<std::string> kPieces = {
      "#",          "run#1",  "\n",   "\r\n",    "\r",   "\t",      "\"",     "'",      "\"\"\"",
      "'''",        "\\",     "\\n",  "=",       "[a]",  "[[a.b]]", "{",      "}",      ",",
      " ",          "  ",     "\x01", "\x1b[2J", "\x7f", "\u0085",  "\u2028", "\u202e", "\u00e9",
      "\U0001f600", "\ufeff", "true", "nan",     "1e5",  "..",      "%",      "$(x)",   "\\u0041"};
  std::string text;
  for (auto pieces = draw.below(6); pieces > 0; --pieces) {
    if (draw.below(3) == 0) {
      auto character = static_cast<std::uint32_t>(1 + draw.below(0x10ffff));
      if (0xd800 <= character && character < 0xe000) character = 'x';
      append_utf8(text, character);
    } else {
      text += kPieces[static_cast<std::size_t>(draw.below(std::ssize(kPieces)))];
    }
  }
  return text;
}

double hostile_double(Draw& draw) {
  const std::vector<double> extremes = {0.0, 1.0, 5e-324, 0.1, 1e22, 9007199254740993.0, 1e6, 1.5};
  if (draw.below(2) == 0) return extremes[static_cast<std::size_t>(draw.below(8))];
  return draw.uniform() * 1e6;
}

/// One of the names in "{a,b,c}".
std::string any_name(const std::string& braced, Draw& draw) {
  std::vector<std::string> names(1);
  for (const char c : braced.substr(1, braced.size() - 2)) {
    if (c == ',') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names[static_cast<std::size_t>(draw.below(std::ssize(names)))];
}

OptionValue other_value(const Option& option, Draw& draw) {
  const auto now = option.get();
  if (std::holds_alternative<bool>(now)) return draw.below(2) == 0;
  if (option.type.starts_with("FLOAT")) return hostile_double(draw);
  if (option.type.starts_with("INT")) return draw.below(1 << 20);
  if (option.type == "A:B") {
    return std::to_string(draw.below(9)) + ":" + std::to_string(9 + draw.below(9));
  }
  if (option.type.starts_with("{")) return any_name(option.type, draw);
  return hostile_text(draw);
}

TEST(TomlOptions, ReadBackWhatWasWritten) {
  const TemporaryFolder folder;
  const auto file = (folder / "run.toml").string();
  int set = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 1000 && !HasFailure(); ++seed) {
    Draw draw(seed);
    TrainConfig written;
    for (auto& option : train_options(written)) {
      if (!option.in_file || draw.below(3) == 0) continue;
      try {
        option.set(other_value(option, draw));
        ++set;
      } catch (const ValueError&) {
        ++refused;  // out of its bounds
      }
    }
    const auto options = train_options(written);
    const auto text = to_toml(options);
    write_file(file, text);
    TrainConfig read;
    auto read_options = train_options(read);
    set_from_toml(read_options, file, "--config-file");
    for (std::size_t i = 0; i < options.size(); ++i) {
      EXPECT_EQ(options[i].get(), read_options[i].get())
          << "seed " << seed << ", " << options[i].name << " of\n"
          << text;
    }
    EXPECT_EQ(record_options(written), record_options(read)) << "seed " << seed;
    EXPECT_EQ(to_toml(read_options), text);
  }
  EXPECT_GT(set, 25'000);
  EXPECT_LT(refused, set / 5);
}

class OptionFile : public ::testing::Test {
 protected:
  /// What is wrong with a file of this content; empty if nothing.
  std::string problem(const std::string& content) {
    write_file(file_, content);
    const auto message =
        message_of<Error>([&] { set_from_toml(options_, file_, "--config-file"); });
    const auto begin = "--config-file: " + file_ + ":";
    EXPECT_TRUE(message.starts_with(begin)) << message;
    return message.substr(std::min(begin.size(), message.size()));
  }

  const TemporaryFolder folder_;
  const std::string file_ = (folder_ / "run.toml").string();
  TrainConfig config_;
  std::vector<Option> options_ = train_options(config_);
};

TEST_F(OptionFile, MayHaveEveryFormOfAType) {
  write_file(file_, R"toml(# a run

lr = 1
weight-decay = 2.5e-1
max_grad_norm = 1_000.5
text = 'C:\x'
prompt = """
And
"""
reshard = true
steps = 0x10
)toml");
  const auto changed = set_from_toml(options_, file_, "--config-file");
  EXPECT_EQ(changed, (std::set<std::string>{"lr", "weight-decay", "max-grad-norm", "text", "prompt",
                                            "reshard", "steps"}));
  EXPECT_EQ(config_.optim.lr, 1.0);
  EXPECT_EQ(config_.optim.weight_decay, 0.25);
  EXPECT_EQ(config_.optim.max_grad_norm, 1000.5);
  EXPECT_EQ(config_.data.text, "C:\\x");
  EXPECT_EQ(config_.output.prompt, "And\n");
  EXPECT_EQ(config_.memory.reshard_after_forward, true);
  EXPECT_EQ(config_.optim.steps, 16);
}

TEST_F(OptionFile, IsRefusedWithTheLineThatIsWrong) {
  EXPECT_EQ(problem("steps = 3\nlr\n").substr(0, 2), "2:");
  EXPECT_EQ(problem("pack = -1\n"), "1: --pack: must be true or false, got -1");
  EXPECT_EQ(problem("linear-only-shard = 2\n"),
            "1: --linear-only-shard: must be true or false, got 2");
  EXPECT_EQ(problem("preset = 'huge'\n"),
            "1: --preset: must be tiny, small, medium, qwen3-30b-a3b, qwen3-235b-a22b, "
            "qwen3-moe-600b, tiny-dense, qwen3-0.6b, tiny-qwen2-moe, tiny-mixtral or "
            "tiny-glm4-moe, got 'huge'");
  EXPECT_EQ(problem("\nlr = -1.5\n"), "2: --lr: must be a number from 0 to 1e+30, got -1.5");
  EXPECT_EQ(problem("lr = -1\n"), "1: --lr: must be a number from 0 to 1e+30, got -1");
  EXPECT_EQ(problem("lr = inf\n"), "1: --lr: must be a number from 0 to 1e+30, got inf");
  EXPECT_EQ(problem("lr = nan\n"), "1: --lr: must be a number from 0 to 1e+30, got nan");
  EXPECT_EQ(problem("lr = '0.1'\n"), "1: --lr: must be a number from 0 to 1e+30, got '0.1'");
  EXPECT_EQ(problem("steps = 1.0\n"),
            "1: --steps: must be an integer from 1 to 1000000000, got 1.0");
  EXPECT_EQ(problem("seed = -1\n"),
            "1: --seed: must be an integer from 0 to 9223372036854775807, got -1");
  EXPECT_EQ(problem("threads-per-rank = 4294967297\n"),
            "1: --threads-per-rank: must be an integer from 1 to 65536, got 4294967297");
  EXPECT_EQ(problem("text = 1\n"), "1: --text: must be a text, got 1");
  EXPECT_EQ(problem("text = \"a\\u0000b\"\n").substr(0, 53),
            "1: --text: must be a text without the character NUL, ");
  EXPECT_EQ(problem("layout = 'zz'\n"), "1: --layout: must be nz or nd, got 'zz'");
  EXPECT_EQ(problem("steps = [1]\n"),
            "1: --steps: must be a text, a number, true or false, got a TOML array");
  EXPECT_EQ(problem("[train]\nsteps = 1\n"), "1: unknown option 'train'");
  EXPECT_EQ(problem("steps = 1\nfoo = 1\n"), "2: unknown option 'foo'");
  EXPECT_EQ(problem("dry-run = true\n"), "1: --dry-run: must be given on the command line");
  EXPECT_EQ(problem("seq-len = 1\nseq_len = 2\n"), "2: seq-len must appear once");
  EXPECT_EQ(problem("steps = 1\nsteps = 2\n").substr(0, 2), "2:");
  EXPECT_EQ(problem("text = \"\xff\"\n").substr(0, 2), "1:");
}

TEST_F(OptionFile, HasNoNumbersThatADoubleCannotHold) {
  EXPECT_EQ(problem("lr = 1e-400\n"),
            "1: --lr: must be a number that a double can hold, got 1e-400");
  EXPECT_EQ(problem("# a = 1\n \"lr\"\t=\t1_0.0e-4_00# small"),
            "2: --lr: must be a number that a double can hold, got 10.0e-400");
  EXPECT_NE(problem("lr = 1e400\n"), "");
  write_file(file_, "weight-decay = +0.0e-400\r\nlr = 4.9e-3_0_0 # small\r\n");
  set_from_toml(options_, file_, "--config-file");
  EXPECT_EQ(config_.optim.lr, 4.9e-300);
  EXPECT_EQ(config_.optim.weight_decay, 0.0);
}

TEST_F(OptionFile, MaySayZeroAndOneAsTheCommandLine) {
  config_.parallel.linear_only_shard = false;
  write_file(file_, "grouped_matmul_nz_transpose = 0\nlinear-only-shard = 1\n");
  set_from_toml(options_, file_, "--config-file");
  EXPECT_FALSE(config_.model.grouped_matmul_nz_transpose);
  EXPECT_TRUE(config_.parallel.linear_only_shard);
}

TEST_F(OptionFile, IsNotParsedWhereThatWouldExhaustTheStack) {
  for (const std::int64_t n : {1001, 400'000}) {
    std::string dots;
    for (std::int64_t i = 0; i < n; ++i) dots += "a.";
    EXPECT_EQ(problem("[" + dots + "a]\n"), "1: must have at most 1000 dots");
    EXPECT_EQ(problem("steps = 1\n" + dots + "a = 1\n"), "2: must have at most 1000 dots");
  }
  std::string dots = "a";
  for (int i = 0; i < 1000; ++i) dots += ".a";
  EXPECT_EQ(problem(dots + " = 1\n"), "1: unknown option 'a'");
  EXPECT_NE(problem("steps = " + std::string(100'000, '[') + "\n"), "");
  write_file(file_, "#" + std::string(1 << 20, 'x'));
  EXPECT_EQ(message_of<ValueError>([&] { set_from_toml(options_, file_, "--config-file"); }),
            "--config-file: " + file_ + ": must be of at most 1048576 bytes, got 1048577");
}

TEST_F(OptionFile, CannotExpressWhatIsNotUtf8) {
  config_.data.text = "\xff";
  EXPECT_EQ(message_of<ValueError>([&] { to_toml(options_); }).substr(0, 48),
            "--text: must be UTF-8 to be written as TOML, got");
}

TEST_F(OptionFile, HasUnsetOptionsAsComments) {
  const auto text = to_toml(options_);
  EXPECT_NE(text.find("\n# warmup = \n"), std::string::npos);
  EXPECT_NE(text.find("\nlr = 0.004\n"), std::string::npos);
  EXPECT_NE(text.find("\nmax-grad-norm = 1.0\n"), std::string::npos);
  EXPECT_NE(text.find("\nprompt = \"And God said, \"\n"), std::string::npos);
  EXPECT_EQ(text.find("dry-run"), std::string::npos);
}

}  // namespace
}  // namespace moegrad::training::toml_options_test
