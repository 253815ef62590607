// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fsdp/sharded_param.h"
#include "models/causal_lm/model.h"

namespace moegrad::training {

/// `bytes` bytes sampled after `prompt`, from the last `context` bytes each. Collective: the first
/// of `ranks` draws them, the others run the model without tokens, and all return the same text. It
/// ends early if `stop` is true, as in evaluate(). The model is given a multiple of `multiple`
/// tokens, of which the last ones do not count: as many ranks as divide its tokens. ValueError if
/// the model's vocab_size is not 256.
std::string sample(
    models::CausalLM& model, const std::string& prompt, std::int64_t bytes, std::int64_t context,
    double temperature, std::uint64_t seed, const fsdp::GroupRanks& ranks,
    const std::function<bool()>& stop = [] { return false; }, std::int64_t multiple = 1);

/// Share of the words of `text` that occur in `corpus` as words (letters only, as written).
double known_words(std::string_view text, std::string_view corpus);

}  // namespace moegrad::training
