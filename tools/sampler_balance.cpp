// SPDX-License-Identifier: Apache-2.0

// How evenly --pack spreads attention over ranks in an epoch, compared with packs in random order:
//
//     build/release/tools/sampler_balance                       the King James text's chapters
//     build/release/tools/sampler_balance --budget 8192 --micro-batches 16
//
// The program measures the same for documents of log-normal length, a few of them very long.

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <limits>

#include "framework/runtime/error.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"
#include "tools/tool_main.h"
#include "train/config/common_options.h"
#include "train/data/attention_balance.h"
#include "train/data/documents.h"
#include "train/data/packing.h"

namespace moegrad::tools {

using namespace training;

namespace {

struct BalanceOptions {
  std::string text = {};  // empty: the King James text
  std::int64_t budget = 4096;
  std::int64_t micro_batches = 8;
  std::uint64_t seed = 1;
};

DocumentOffsets log_normal_documents(std::uint64_t seed) {
  constexpr std::uint64_t kDocuments = 20000;
  constexpr double kMedian = 300, kSigma = 1.5;
  const Random random(seed, "document lengths");
  DocumentOffsets offsets = {0};
  for (std::uint64_t d = 0; d < kDocuments; ++d) {
    const auto length = std::llround(kMedian * std::exp(kSigma * random.normal(d)));
    offsets.push_back(offsets.back() + std::max<std::int64_t>(2, length));
  }
  return offsets;
}

void print_line(const std::string& order, int ranks, const AttentionBalance& balance) {
  std::cout << std::fixed << "  " << std::setw(5) << ranks << "  " << std::left << std::setw(8)
            << order << std::right << std::setprecision(3) << std::setw(12) << balance.mean_ratio
            << std::setw(13) << balance.worst_ratio << std::setprecision(2) << std::setw(20)
            << 100 * balance.waiting << '\n';
}

void report(const std::string& name, const DocumentOffsets& documents,
            const BalanceOptions& options) {
  std::vector<std::int64_t> work;
  for (const auto& pack : soft_pack(documents, options.budget)) {
    work.push_back(attention_work(pack));
  }
  // If all packs have weight zero, they stay in the order into which they are shuffled.
  const LengthGroupedSampler random(std::vector<std::int64_t>(work.size()), options.micro_batches,
                                    options.seed);
  const LengthGroupedSampler grouped(work, options.micro_batches, options.seed);
  const auto steps = (std::ssize(work) + options.micro_batches - 1) / options.micro_batches;
  std::cout << name << ": " << documents.size() - 1 << " documents, " << documents.back()
            << " tokens, " << work.size() << " packs of at most " << options.budget << ", " << steps
            << " steps of " << options.micro_batches << '\n'
            << "  ranks  order    max / mean   worst step   waiting (% of mean)\n";
  for (const int ranks : {2, 4, 8}) {
    print_line("random", ranks, attention_balance(random, work, ranks, steps));
    print_line("grouped", ranks, attention_balance(grouped, work, ranks, steps));
  }
}

// A million packs take some seconds.
void check_budget(const DocumentOffsets& documents, std::int64_t budget) {
  constexpr std::int64_t kMostPacks = 1'000'000;
  const auto least = (documents.back() + kMostPacks - 1) / kMostPacks;
  check<UsageError>(budget >= least, "--budget: must be at least ", least, " for ",
                    documents.back(), " tokens, got ", budget);
}

int run(const BalanceOptions& options) {
  const auto tokens = TokenSource::text_file(options.text);
  const auto text = tokens.as_text();
  const auto documents =
      options.text.empty() ? king_james_chapters(text) : blank_line_documents(text);
  const auto log_normal = log_normal_documents(options.seed);
  for (const auto* each : {&documents, &log_normal}) check_budget(*each, options.budget);
  report(tokens.name(), documents, options);
  report("log-normal lengths", log_normal, options);
  return 0;
}

CommandLine command_line(BalanceOptions& options) {
  return {
      "How evenly packed documents spread attention over ranks.",
      {path_option("text", options.text, PathKind::kInput,
                   "text file, documents at blank lines; default: the King James text's chapters"),
       number_option("budget", options.budget, {1, 1 << 30}, "tokens per pack, at most"),
       micro_batches_option(options.micro_batches, "packs per step, over all ranks"),
       seed_option(options.seed, "of the order and the lengths")}};
}

}  // namespace
}  // namespace moegrad::tools

int main(int argc, char** argv) {
  using namespace moegrad::tools;
  return tool_main(moegrad::run_program_once, "sampler_balance", command_line, run, argc, argv);
}
