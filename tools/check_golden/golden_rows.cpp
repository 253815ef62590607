// SPDX-License-Identifier: Apache-2.0
#include "tools/check_golden/golden_rows.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "framework/runtime/error.h"

namespace moegrad::tools {
namespace {

constexpr std::int64_t kIgnored = -100;

Tensor index_tensor(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, {std::ssize(values)});
}

/// Builds a GoldenRow sequence by sequence.
class RowBuilder {
 public:
  RowBuilder(const models::CausalLMConfig& config, std::string where)
      : config_(config), where_(std::move(where)) {}

  void append(std::span<const std::int64_t> ids, std::span<const std::int64_t> labels,
              std::span<const std::int64_t> positions) {
    check<ValueError>(!ids.empty() && ids.size() == labels.size() && ids.size() == positions.size(),
                      where_, ": a sequence must have as many input_ids, labels and position_ids, ",
                      "at least one, got ", ids.size(), ", ", labels.size(), " and ",
                      positions.size());
    for (std::size_t t = 0; t < ids.size(); ++t) {
      check_token("input_ids", ids[t]);
      if (labels[t] != kIgnored) check_token("labels", labels[t]);
      check<ValueError>(positions[t] >= 0, where_, ": position_ids must be >= 0, got ",
                        positions[t]);
      // Position t is scored against the label after it.
      targets_.push_back(t + 1 < ids.size() ? labels[t + 1] : kIgnored);
    }
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    positions_.insert(positions_.end(), positions.begin(), positions.end());
    lengths_.push_back(std::ssize(ids));
  }

  GoldenRow row() const {
    check<ValueError>(!tokens_.empty(), where_, ": must have a sequence, got none");
    return {.tokens = index_tensor(tokens_),
            .positions = index_tensor(positions_),
            .targets = index_tensor(targets_),
            .documents = Documents::of_lengths(lengths_),
            .num_targets = std::ssize(targets_) - std::ranges::count(targets_, kIgnored)};
  }

 private:
  void check_token(const char* key, std::int64_t token) const {
    check<ValueError>(0 <= token && token < config_.vocab_size, where_, ": ", key,
                      " must be in [0, ", config_.vocab_size, ") (vocab_size), got ", token);
  }

  const models::CausalLMConfig& config_;
  std::string where_;
  std::vector<std::int64_t> tokens_, positions_, targets_, lengths_;
};

void check_has_targets(const GoldenRow& row, const std::string& where) {
  check<ValueError>(row.num_targets > 0, where, ": labels must score a token, got none that does");
}

std::vector<std::int64_t> counting(std::size_t n) {
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(static_cast<std::int64_t>(i));
  return values;
}

}  // namespace

GoldenRow golden_batch(const models::CausalLMConfig& config, const std::string& where,
                       const Ids& ids, const Ids& labels, const Ids* positions) {
  check<ValueError>(
      ids.size() == labels.size() && (positions == nullptr || ids.size() == positions->size()),
      where, ": input_ids, labels and position_ids must have as many rows, got ", ids.size(), ", ",
      labels.size(), " and ", positions == nullptr ? ids.size() : positions->size());
  RowBuilder builder(config, where);
  for (std::size_t b = 0; b < ids.size(); ++b) {
    check<ValueError>(ids[b].size() == ids[0].size(), where, ": rows of a batch must be of ",
                      ids[0].size(), " tokens, got ", ids[b].size());
    builder.append(ids[b], labels[b],
                   positions != nullptr ? (*positions)[b] : counting(ids[b].size()));
  }
  auto row = builder.row();
  check_has_targets(row, where);
  return row;
}

PackedRow golden_packed_row(const models::CausalLMConfig& config, const std::string& where,
                            const JsonNode& packed) {
  const auto ids = packed["input_ids"].list(&JsonNode::integer),
             labels = packed["labels"].list(&JsonNode::integer);
  const auto bounds = packed["cu_seqlens"].list(&JsonNode::integer);
  const auto positions = packed.has("position_ids")
                             ? packed["position_ids"].list(&JsonNode::integer)
                             : counting(ids.size());
  const auto length = std::ssize(ids);
  check<ValueError>(labels.size() == ids.size() && positions.size() == ids.size(), where,
                    ": packed input_ids, labels and position_ids must be as many, got ", length,
                    ", ", labels.size(), " and ", positions.size());
  const bool whole = bounds.size() >= 2 && bounds.front() == 0 && bounds.back() == length &&
                     std::ranges::is_sorted(bounds, std::less_equal());
  packed["cu_seqlens"].require(whole, "must be rising from 0 to ", length, ", got ",
                               packed["cu_seqlens"]);
  PackedRow result;
  RowBuilder all(config, where);
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const auto cut = [&](const std::vector<std::int64_t>& values) {
      return std::span(values).subspan(static_cast<std::size_t>(bounds[i]),
                                       static_cast<std::size_t>(bounds[i + 1] - bounds[i]));
    };
    all.append(cut(ids), cut(labels), cut(positions));
    RowBuilder alone(config, where);
    alone.append(cut(ids), cut(labels), cut(positions));
    result.alone.push_back(alone.row());
  }
  result.row = all.row();
  check_has_targets(result.row, where);
  return result;
}

}  // namespace moegrad::tools
