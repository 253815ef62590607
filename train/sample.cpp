// SPDX-License-Identifier: Apache-2.0
#include "train/sample.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/math/elementary.h"
#include "framework/runtime/random.h"
#include "framework/tensor/fill.h"
#include "fsdp/step_plan.h"
#include "ops/tensor_parallel.h"
#include "train/data/micro_batch.h"

namespace moegrad::training {
namespace {

std::int64_t draw(std::span<const double> weights, double u) {
  double total = 0;
  for (const auto weight : weights) total += weight;
  double sum = 0;
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    sum += weights[i];
    if (u * total < sum) return static_cast<std::int64_t>(i);
  }
  return std::ssize(weights) - 1;
}

std::int64_t choose(const Tensor& logits, std::int64_t row, double temperature, double u) {
  const Tensor values = to_dtype(logits, Dtype::kFloat64);
  const auto n = static_cast<std::size_t>(logits.dim(1));
  const auto all = values.data<double>().subspan(static_cast<std::size_t>(row) * n, n);
  const auto largest = std::ranges::max_element(all);
  if (temperature == 0) return largest - all.begin();
  std::vector<double> weights;
  for (const auto value : all) weights.push_back(math::exp((value - *largest) / temperature));
  return draw(weights, u);
}

template <class Visit>
void for_each_word(std::string_view text, const Visit& visit) {
  std::string word;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) != 0) {
      word += text[i];
    } else if (!word.empty()) {
      visit(std::exchange(word, {}));
    }
  }
}

}  // namespace

std::string sample(models::CausalLM& model, const std::string& prompt, std::int64_t bytes,
                   std::int64_t context, double temperature, std::uint64_t seed,
                   const fsdp::GroupRanks& ranks, const std::function<bool()>& stop,
                   std::int64_t multiple) {
  check<ValueError>(!prompt.empty(), "--prompt: must not be empty");
  check<ValueError>(model.config().vocab_size == 256,
                    "sample: the model's ids must be bytes (a vocab_size of 256), got a vocab_size "
                    "of ",
                    model.config().vocab_size);
  const NoGradGuard no_grad;
  const Random random(seed, "sampling");
  const bool draws = ranks.rank() == 0;
  std::string text = prompt;
  for (std::int64_t i = 0; i < bytes && !stop(); ++i) {
    const auto length = std::min(context, std::ssize(text));
    std::vector<std::int64_t> window;
    for (auto at = std::ssize(text) - length; at < std::ssize(text); ++at) {
      window.push_back(static_cast<unsigned char>(text[static_cast<std::size_t>(at)]));
    }
    window.resize(static_cast<std::size_t>((length + multiple - 1) / multiple * multiple));
    const auto output =
        model(draws ? Tensor::from(window, {std::ssize(window)}) : no_tokens().tokens);
    const Tensor logits = output.vocabulary == nullptr
                              ? output.logits
                              : ops::gather_from_ranks(output.vocabulary, output.logits, 1);
    std::int64_t next = 0;
    if (draws) {
      next = choose(logits, length - 1, temperature, random.uniform(static_cast<std::uint64_t>(i)));
    }
    fsdp::sum_over(ranks, std::span(&next, 1));  // zero on all other ranks
    text += static_cast<char>(next);
  }
  return text.substr(prompt.size());
}

double known_words(std::string_view text, std::string_view corpus) {
  std::unordered_set<std::string> vocabulary;
  for_each_word(corpus, [&](std::string word) { vocabulary.insert(std::move(word)); });
  std::int64_t words = 0, known = 0;
  for_each_word(text, [&](const std::string& word) {
    ++words;
    known += vocabulary.contains(word) ? 1 : 0;
  });
  return words == 0 ? 0.0 : static_cast<double>(known) / static_cast<double>(words);
}

}  // namespace moegrad::training
