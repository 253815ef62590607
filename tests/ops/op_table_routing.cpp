// SPDX-License-Identifier: Apache-2.0
// Rows by expert. Shapes: T tokens, E experts, K experts per token, R = T * K rows, H hidden.
#include <algorithm>

#include "ops/routing.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

struct Plan {
  std::vector<std::int64_t> row_of_slot, slot_of_row, offsets{0}, counts;
};

// Expert by expert, all slots that chose it.
Plan plan_of(const Array& indices, std::int64_t experts) {
  Plan plan;
  plan.row_of_slot.resize(indices.values.size());
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::size_t slot = 0; slot < indices.values.size(); ++slot) {
      if (indices.values[slot] != static_cast<double>(e)) continue;
      plan.row_of_slot[slot] = std::ssize(plan.slot_of_row);
      plan.slot_of_row.push_back(static_cast<std::int64_t>(slot));
    }
    plan.counts.push_back(std::ssize(plan.slot_of_row) - plan.offsets.back());
    plan.offsets.push_back(std::ssize(plan.slot_of_row));
  }
  return plan;
}

Array array_of(const std::vector<std::int64_t>& values) {
  Array array({std::ssize(values)});
  std::ranges::copy(values, array.values.begin());
  return array;
}

OpEntry plan_routing_op() {
  OpEntry entry{.op = "plan_routing", .differentiable = false};
  entry.run = [](const TensorList& in, const Json& args) {
    const auto plan = ops::plan_routing(in[0], args["experts"]);
    return TensorList{plan.row_of_slot, plan.slot_of_row,
                      indices_of(plan.sent.offsets(), {plan.sent.experts() + 1}),
                      indices_of(plan.sent.counts(), {plan.sent.experts()}),
                      indices_of({plan.tokens, plan.top_k}, {2})};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto plan = plan_of(in[0], args["experts"]);
    return Arrays{array_of(plan.row_of_slot), array_of(plan.slot_of_row), array_of(plan.offsets),
                  array_of(plan.counts), array_of({in[0].dim(0), in[0].dim(1)})};
  };
  const auto sample = [](const std::string& what, std::int64_t tokens, std::int64_t k,
                         std::int64_t experts) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = {tokens, k}, .draw = Draw::kDistinctIndices, .bound = experts}},
        .args = {{"experts", experts}}};
  };
  entry.samples = {sample("two of five", 9, 2, 5), sample("one of many", 3, 1, 17),
                   sample("all", 4, 3, 3), sample("one token, one expert", 1, 1, 1),
                   sample("no tokens", 0, 2, 4)};
  const auto call = [](const Tensor& indices, std::int64_t num_experts) {
    return [=] { ops::plan_routing(indices, num_experts); };
  };
  entry.errors = {{"another rank", call(indices_of({0}, {1}), 2), "ShapeError",
                   "routing: indices must be [T, K], got [1]"},
                  {"no experts", call(indices_of({}, {0, 1}), 0), "ValueError",
                   "routing: num_experts must be at least 1, got 0"},
                  {"indices that are no integers", call(randn({2, 1}), 2), "DtypeError",
                   "routing: indices must be int64, got float64"},
                  {"an expert out of range", call(indices_of({0, 1, 2, 0}, {2, 2}), 2),
                   "ValueError", "routing: expert index must be in [0, 2), got 2 at token 1"}};
  return entry;
}

Input chosen(std::int64_t tokens, std::int64_t k, std::int64_t experts) {
  return {.shape = {tokens, k}, .draw = Draw::kDistinctIndices, .bound = experts};
}

OpEntry permute_rows_op() {
  OpEntry entry{.op = "permute_rows", .dtypes = kReals};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::permute_rows(in[0], ops::plan_routing(in[1], args["experts"]))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto plan = plan_of(in[1], args["experts"]);
    Array rows({std::ssize(plan.slot_of_row), in[0].dim(1)});
    for_each_index(rows.shape, [&](const Shape& i) {
      rows[i] = in[0][{plan.slot_of_row[static_cast<std::size_t>(i[0])] / in[1].dim(1), i[1]}];
    });
    return Arrays{rows};
  };
  const auto sample = [](const std::string& what, const Shape& x, std::int64_t k,
                         std::int64_t experts, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = x}, chosen(x[0], k, experts)},
                    .args = {{"experts", experts}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("two of five", {4, 3}, 2, 5),
                   sample("one of many", {3, 5}, 1, 17),
                   sample("all", {2, 4}, 3, 3),
                   sample("size one", {1, 1}, 1, 1),
                   sample("no tokens", {0, 3}, 2, 4),
                   sample("no columns", {3, 0}, 2, 4),
                   sample("several pieces", {200, 100}, 3, 8, true)};
  const auto permute = [](const Tensor& x) {
    return [=] { ops::permute_rows(x, ops::plan_routing(indices_of({0, 1, 1, 2}, {2, 2}), 3)); };
  };
  entry.errors = {{"another rank", permute(randn({2})), "ShapeError",
                   "permute_rows: x must be [T, H], got [2]"},
                  {"too many tokens", permute(randn({3, 5})), "ShapeError",
                   "permute_rows: the plan has 4 rows, 2 for each token, got x [3, 5]"},
                  {"integers", permute(Tensor::zeros({2, 5}, Dtype::kInt64)), "DtypeError",
                   "permute_rows: x must be float32, float64 or bfloat16, got int64"}};
  return entry;
}

OpEntry unpermute_rows_op() {
  OpEntry entry{.op = "unpermute_rows", .dtypes = kReals};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::unpermute_rows(in[0], ops::plan_routing(in[1], args["experts"]))};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    const auto plan = plan_of(in[1], args["experts"]);
    const auto tokens = in[1].dim(0), k = in[1].dim(1);
    Array y({tokens, in[0].dim(1)});
    for_each_index(y.shape, [&](const Shape& i) {
      for (auto slot = i[0] * k; slot < (i[0] + 1) * k; ++slot) {
        y[i] += in[0][{plan.row_of_slot[static_cast<std::size_t>(slot)], i[1]}];
      }
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, std::int64_t tokens, std::int64_t h,
                         std::int64_t k, std::int64_t experts, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = {tokens * k, h}}, chosen(tokens, k, experts)},
                    .args = {{"experts", experts}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("two of five", 4, 3, 2, 5),
                   sample("one of many", 3, 5, 1, 17),
                   sample("all", 2, 4, 3, 3),
                   sample("size one", 1, 1, 1, 1),
                   sample("no tokens", 0, 3, 2, 4),
                   sample("no columns", 3, 0, 2, 4),
                   sample("several pieces", 200, 100, 3, 8, true)};
  const auto unpermute = [](const Tensor& rows) {
    return [=] {
      ops::unpermute_rows(rows, ops::plan_routing(indices_of({0, 1, 1, 2}, {2, 2}), 3));
    };
  };
  entry.errors = {{"another rank", unpermute(randn({4})), "ShapeError",
                   "unpermute_rows: rows must be [4, H] as planned, got [4]"},
                  {"too few rows", unpermute(randn({3, 5})), "ShapeError",
                   "unpermute_rows: rows must be [4, H] as planned, got [3, 5]"},
                  {"integers", unpermute(Tensor::zeros({4, 5}, Dtype::kInt64)), "DtypeError",
                   "unpermute_rows: rows must be float32, float64 or bfloat16, got int64"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> routing_entries() {
  return {plan_routing_op(), permute_rows_op(), unpermute_rows_op()};
}

}  // namespace moegrad::test
