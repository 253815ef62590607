// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the entries of ops that reduce one dimension have in common.

#include <string>
#include <vector>

#include "tests/ops/op_table.h"

namespace moegrad::test {

inline OpSample line_sample(const std::string& what, const Shape& shape, std::int64_t dim,
                            bool keepdim, bool large = false) {
  return {.what = what,
          .inputs = {{.shape = shape}},
          .args = {{"dim", dim}, {"keepdim", keepdim}},
          .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
}

inline std::vector<OpSample> line_samples() {
  return {line_sample("rows", {3, 7}, -1, false),
          line_sample("columns", {3, 7}, 0, true),
          line_sample("the middle", {2, 3, 5}, 1, false),
          line_sample("the middle, kept", {2, 3, 5}, -2, true),
          line_sample("size one", {1}, 0, false),
          line_sample("no results", {0, 3}, 1, false),
          line_sample("several pieces of rows", {257, 130}, 1, false, true),
          line_sample("several pieces of columns", {130, 600}, 0, false, true)};
}

/// fold(the elements along the dimension) for each element of the result.
template <class Fold>
Array fold_lines(const Array& x, const Json& args, const Fold& fold) {
  const auto dim = from_front(args["dim"], x.shape.ndim());
  Shape kept = x.shape, removed;
  kept[dim] = 1;
  for (std::int64_t i = 0; i < x.shape.ndim(); ++i) {
    if (i != dim) removed.push_back(x.dim(i));
  }
  Array y(kept);
  for_each_index(kept, [&](Shape i) {
    const Shape to = i;
    std::vector<double> line;
    for (i[dim] = 0; i[dim] < x.dim(dim); ++i[dim]) line.push_back(x[i]);
    y[to] = fold(line);
  });
  if (!args["keepdim"].get<bool>()) y.shape = removed;
  return y;
}

}  // namespace moegrad::test
