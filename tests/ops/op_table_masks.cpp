// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>

#include "ops/masks.h"
#include "tests/ops/op_table.h"
#include "tests/testing.h"

namespace moegrad::test {
namespace {

using Compare = std::function<bool(double, double)>;

const Input kMaskOf34{.shape = {3, 4}, .draw = Draw::kMask};

Shape broadcast(const Shape& a, const Shape& b) {
  Shape shape;
  const auto ndim = std::max(a.ndim(), b.ndim());
  for (auto i = -ndim; i < 0; ++i) {
    const auto of_a = i < -a.ndim() ? 1 : a[i], of_b = i < -b.ndim() ? 1 : b[i];
    shape.push_back(of_a == 1 ? of_b : of_a);
  }
  return shape;
}

std::vector<OpError> compare_errors(const std::string& op,
                                    const std::function<void(const Tensor&)>& call) {
  return {{"masks", [call] { call(Tensor::zeros({2}, Dtype::kBool)); }, "DtypeError",
           op + ": needs float32, float64 or int64, got bool"}};
}

// Compares elements that are often equal.
OpEntry compare_entry(const std::string& op, Tensor (*function)(const Tensor&, const Tensor&),
                      const Compare& compare) {
  OpEntry entry{
      .op = op, .parameters = "Tensor, Tensor", .dtypes = kOrderedDtypes, .differentiable = false};
  entry.run = [function](const TensorList& in, const Json&) {
    return TensorList{function(in[0], in[1])};
  };
  entry.reference = [compare](const Arrays& in, const Json&) {
    Array y(broadcast(in[0].shape, in[1].shape));
    for_each_index(y.shape, [&](const Shape& i) {
      y[i] = compare(broadcast_at(in[0], i), broadcast_at(in[1], i)) ? 1 : 0;
    });
    return Arrays{y};
  };
  const std::vector<double> a{1, 2, 3, -1, 0, 5}, b{1, 3, 2, -1, 7, 5};
  entry.samples = {{.what = "equal ones among others",
                    .inputs = {{.shape = {2, 3}, .given = a}, {.shape = {2, 3}, .given = b}}},
                   {.what = "both repeat", .inputs = {{.shape = {2, 1, 3}}, {.shape = {4, 1}}}},
                   {.what = "a scalar", .inputs = {{.shape = {}}, {.shape = {3, 2}}}},
                   {.what = "nothing", .inputs = {{.shape = {0, 3}}, {.shape = {3}}}},
                   {.what = "several pieces", .inputs = {{.shape = {130, 257}}, {.shape = {257}}}}};
  entry.errors = compare_errors(op, [function](const Tensor& x) { function(x, x); });
  entry.errors.push_back({"shapes that do not broadcast",
                          [function] {
                            function(randn({2, 3}), randn({2}));
                          },
                          "ShapeError", op + ": shapes [2, 3] and [2] do not broadcast"});
  entry.errors.push_back({"mixed dtypes",
                          [function] { function(randn({2}), Tensor::zeros({2}, Dtype::kInt64)); },
                          "DtypeError", op + ": dtypes must agree, got float64 and int64"});
  return entry;
}

OpEntry compare_number_entry(const std::string& op, Tensor (*function)(const Tensor&, double),
                             const Compare& compare) {
  OpEntry entry{
      .op = op, .parameters = "Tensor, double", .dtypes = kOrderedDtypes, .differentiable = false};
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], args["number"].get<double>())};
  };
  entry.reference = [compare](const Arrays& in, const Json& args) {
    Array y = in[0];
    for (auto& value : y.values) value = compare(value, args["number"].get<double>()) ? 1 : 0;
    return Arrays{y};
  };
  entry.samples = {{.what = "equal ones among others",
                    .inputs = {{.shape = {2, 3}, .given = {1, 2, 3, -1, 2, 2}}},
                    .args = {{"number", 2}}},
                   {.what = "odd sizes", .inputs = {{.shape = {3, 5}}}, .args = {{"number", 0}}},
                   {.what = "a scalar", .inputs = {{.shape = {}}}, .args = {{"number", -1}}},
                   {.what = "nothing", .inputs = {{.shape = {0}}}, .args = {{"number", 1}}}};
  entry.errors = compare_errors(op, [function](const Tensor& x) { function(x, 1); });
  return entry;
}

OpEntry logical_entry(const std::string& op, Tensor (*function)(const Tensor&, const Tensor&),
                      bool (*formula)(bool, bool)) {
  OpEntry entry{.op = op, .dtypes = kAllDtypes, .differentiable = false};
  entry.run = [function](const TensorList& in, const Json&) {
    return TensorList{function(in[0], in[1])};
  };
  entry.reference = [formula](const Arrays& in, const Json&) {
    Array y(broadcast(in[0].shape, in[1].shape));
    for_each_index(y.shape, [&](const Shape& i) {
      y[i] = formula(broadcast_at(in[0], i) != 0, broadcast_at(in[1], i) != 0) ? 1 : 0;
    });
    return Arrays{y};
  };
  const auto mask = [](const Shape& shape) { return Input{.shape = shape, .draw = Draw::kMask}; };
  entry.samples = {{.what = "one shape", .inputs = {mask({3, 4}), mask({3, 4})}},
                   {.what = "both repeat", .inputs = {mask({2, 1, 5}), mask({3, 1})}},
                   {.what = "a scalar", .inputs = {mask({}), mask({7})}},
                   {.what = "nothing", .inputs = {mask({0, 2}), mask({2})}}};
  const Tensor two = Tensor::zeros({2}, Dtype::kBool);
  entry.errors = {
      {"numbers on the left", [=] { function(randn({2}), two); }, "DtypeError",
       op + ": input 0 must be bool, got float64"},
      {"numbers on the right", [=] { function(two, randn({2})); }, "DtypeError",
       op + ": input 1 must be bool, got float64"},
      {"shapes that do not broadcast", [=] { function(two, Tensor::zeros({3}, Dtype::kBool)); },
       "ShapeError", op + ": shapes [2] and [3] do not broadcast"}};
  return entry;
}

OpEntry logical_not_entry() {
  OpEntry entry{.op = "logical_not", .dtypes = kAllDtypes, .differentiable = false};
  entry.run = [](const TensorList& in, const Json&) { return TensorList{ops::logical_not(in[0])}; };
  entry.reference = [](const Arrays& in, const Json&) {
    Array y = in[0];
    for (auto& value : y.values) value = 1 - value;
    return Arrays{y};
  };
  entry.samples = {{.what = "a matrix", .inputs = {kMaskOf34}},
                   {.what = "a scalar", .inputs = {{.shape = {}, .draw = Draw::kMask}}},
                   {.what = "nothing", .inputs = {{.shape = {0}, .draw = Draw::kMask}}}};
  entry.errors = {{"numbers", [] { ops::logical_not(randn({2})); }, "DtypeError",
                   "logical_not: input 0 must be bool, got float64"}};
  return entry;
}

OpEntry isnan_entry() {
  OpEntry entry{.op = "isnan", .dtypes = kOrderedDtypes, .differentiable = false};
  entry.run = [](const TensorList& in, const Json&) { return TensorList{ops::isnan(in[0])}; };
  entry.reference = [](const Arrays& in, const Json&) {
    Array y = in[0];
    for (auto& value : y.values) value = std::isnan(value) ? 1 : 0;
    return Arrays{y};
  };
  entry.samples = {{.what = "numbers", .inputs = {{.shape = {3, 5}}}},
                   {.what = "a scalar", .inputs = {{.shape = {}}}},
                   {.what = "nothing", .inputs = {{.shape = {0, 2}}}}};
  entry.errors = compare_errors("isnan", [](const Tensor& x) { ops::isnan(x); });
  return entry;
}

// `neutral` is 0 for any and 1 for all.
Array folded(const Array& x, const Shape& shape, double neutral,
             const std::function<Shape(const Shape&)>& to) {
  Array y(shape, neutral);
  for_each_index(x.shape, [&](const Shape& i) {
    if (x[i] != neutral) y[to(i)] = 1 - neutral;
  });
  return y;
}

OpEntry fold_entry(const std::string& op, Tensor (*function)(const Tensor&), double neutral) {
  OpEntry entry{.op = op, .parameters = "Tensor", .dtypes = kAllDtypes, .differentiable = false};
  entry.run = [function](const TensorList& in, const Json&) { return TensorList{function(in[0])}; };
  entry.reference = [neutral](const Arrays& in, const Json&) {
    return Arrays{folded(in[0], {}, neutral, [](const Shape&) { return Shape{}; })};
  };
  const auto given = [](const std::string& what, const std::vector<double>& values) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = {std::ssize(values)}, .draw = Draw::kMask, .given = values}}};
  };
  entry.samples = {given("one true", {0, 0, 1}),
                   given("one false", {1, 0, 1}),
                   given("all true", {1, 1, 1}),
                   given("all false", {0, 0, 0}),
                   {.what = "a matrix", .inputs = {kMaskOf34}},
                   {.what = "a scalar", .inputs = {{.shape = {}, .draw = Draw::kMask}}},
                   {.what = "nothing", .inputs = {{.shape = {2, 0}, .draw = Draw::kMask}}}};
  entry.errors = {{"numbers", [function] { function(randn({2})); }, "DtypeError",
                   op + ": input 0 must be bool, got float64"}};
  return entry;
}

OpEntry fold_dim_entry(const std::string& op, Tensor (*function)(const Tensor&, std::int64_t, bool),
                       double neutral) {
  OpEntry entry{
      .op = op, .parameters = "Tensor, int64, bool", .dtypes = kAllDtypes, .differentiable = false};
  entry.run = [function](const TensorList& in, const Json& args) {
    return TensorList{function(in[0], args["dim"], args["keepdim"])};
  };
  entry.reference = [neutral](const Arrays& in, const Json& args) {
    const auto dim = from_front(args["dim"], in[0].shape.ndim());
    const bool keepdim = args["keepdim"];
    const auto without = [&](const Shape& of, std::int64_t kept) {
      Shape shape;
      for (std::int64_t i = 0; i < of.ndim(); ++i) {
        if (i != dim) shape.push_back(of[i]);
        if (i == dim && keepdim) shape.push_back(kept);
      }
      return shape;
    };
    return Arrays{folded(in[0], without(in[0].shape, 1), neutral,
                         [&](const Shape& i) { return without(i, 0); })};
  };
  const auto sample = [](const std::string& what, const Shape& shape, std::int64_t dim,
                         bool keepdim) {
    return OpSample{.what = what,
                    .inputs = {{.shape = shape, .draw = Draw::kMask}},
                    .args = {{"dim", dim}, {"keepdim", keepdim}}};
  };
  entry.samples = {sample("rows", {3, 5}, 0, false),          sample("columns", {4, 3}, -1, true),
                   sample("the middle", {2, 3, 4}, 1, false), sample("to a scalar", {3}, 0, false),
                   sample("of nothing", {2, 0, 3}, 1, false), sample("nothing", {0, 3}, 1, true)};
  entry.errors = {{"numbers", [function] { function(randn({2}), 0, false); }, "DtypeError",
                   op + ": input 0 must be bool, got float64"},
                  {"a dimension out of range",
                   [function] { function(Tensor::zeros({2}, Dtype::kBool), 1, false); },
                   "ShapeError", op + ": dimension must be in [-1, 0], got 1"}};
  return entry;
}

OpEntry nonzero_entry() {
  OpEntry entry{.op = "nonzero", .dtypes = kAllDtypes, .differentiable = false};
  entry.run = [](const TensorList& in, const Json&) { return TensorList{ops::nonzero(in[0])}; };
  entry.reference = [](const Arrays& in, const Json&) {
    std::vector<double> positions;
    for_each_index(in[0].shape, [&](const Shape& i) {
      if (in[0][i] != 0) positions.insert(positions.end(), i.begin(), i.end());
    });
    const auto ndim = in[0].shape.ndim();
    Array y(
        {ndim == 0 ? static_cast<std::int64_t>(in[0].values[0] != 0) : std::ssize(positions) / ndim,
         ndim});
    y.values = positions;
    return Arrays{y};
  };
  entry.samples = {
      {.what = "a matrix", .inputs = {{.shape = {2, 3}, .given = {0, 2, 0, -1, 0, 5}}}},
      {.what = "three dimensions", .inputs = {{.shape = {2, 1, 2}, .given = {1, 0, 0, 7}}}},
      {.what = "a scalar", .inputs = {{.shape = {}, .given = {3}}}},
      {.what = "zeros", .inputs = {{.shape = {3}, .given = {0, 0, 0}}}},
      {.what = "nothing", .inputs = {{.shape = {0, 3}}}}};
  entry.errors = {{"an undefined tensor", [] { ops::nonzero({}); }, "Error",
                   "nonzero: input 0 must be a defined tensor, got an undefined one"}};
  return entry;
}

OpEntry where_entry() {
  OpEntry entry{.op = "where", .parameters = "Tensor, Tensor, Tensor", .dtypes = kAllDtypes};
  entry.run = [](const TensorList& in, const Json&) {
    return TensorList{ops::where(in[0], in[1], in[2])};
  };
  entry.reference = [](const Arrays& in, const Json&) {
    Array y(broadcast(in[0].shape, broadcast(in[1].shape, in[2].shape)));
    for_each_index(y.shape, [&](const Shape& i) {
      y[i] = broadcast_at(in[broadcast_at(in[0], i) != 0 ? 1 : 2], i);
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& condition, const Shape& a,
                         const Shape& b, bool large = false) {
    return OpSample{.what = what,
                    .inputs = {{.shape = condition, .draw = Draw::kMask, .saved = true},
                               {.shape = a},
                               {.shape = b}},
                    .differences = large ? Differences::kOneDirection : Differences::kEveryElement};
  };
  entry.samples = {sample("one shape", {3, 5}, {3, 5}, {3, 5}),
                   sample("all repeat", {3, 1, 1}, {4, 1}, {2}),
                   sample("a scalar condition", {}, {2, 3}, {3}),
                   sample("scalars to choose from", {2, 3}, {}, {}),
                   sample("nothing", {0, 3}, {3}, {}),
                   sample("several pieces", {130, 1}, {130, 257}, {257}, true)};
  entry.errors = {
      {"a condition of numbers", [] { ops::where(randn({2}), randn({2}), randn({2})); },
       "DtypeError", "where: condition must be bool, got float64"},
      {"mixed dtypes",
       [] {
         ops::where(Tensor::zeros({2}, Dtype::kBool), randn({2}), randn({2}, 1, Dtype::kFloat32));
       },
       "DtypeError", "where: a is float64 but b is float32"},
      {"a condition of another shape",
       [] { ops::where(Tensor::zeros({3}, Dtype::kBool), randn({2}), randn({2})); }, "ShapeError",
       "where: shapes [3] and [2] do not broadcast"}};
  return entry;
}

// `number_first`: where(condition, number, tensor), otherwise where(condition, tensor, number).
OpEntry where_number_entry(bool number_first) {
  OpEntry entry{.op = "where",
                .parameters = number_first ? "Tensor, double, Tensor" : "Tensor, Tensor, double",
                .dtypes = kAllDtypes};
  const auto run = [number_first](const Tensor& condition, const Tensor& a, double number) {
    return number_first ? ops::where(condition, number, a) : ops::where(condition, a, number);
  };
  entry.run = [run](const TensorList& in, const Json& args) {
    return TensorList{run(in[0], in[1], args["number"])};
  };
  entry.reference = [number_first](const Arrays& in, const Json& args) {
    Array y(broadcast(in[0].shape, in[1].shape));
    for_each_index(y.shape, [&](const Shape& i) {
      const bool takes_number = (broadcast_at(in[0], i) != 0) == number_first;
      y[i] = takes_number ? args["number"].get<double>() : broadcast_at(in[1], i);
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& condition, const Shape& a) {
    return OpSample{
        .what = what,
        .inputs = {{.shape = condition, .draw = Draw::kMask, .saved = true}, {.shape = a}},
        .args = {{"number", 1}}};
  };
  entry.samples = {sample("one shape", {3, 5}, {3, 5}), sample("both repeat", {3, 1}, {2}),
                   sample("a scalar", {2, 3}, {}), sample("nothing", {0, 3}, {3})};
  const Tensor mask = Tensor::zeros({2}, Dtype::kBool);
  entry.errors = {{"a condition of numbers", [=] { run(randn({2}), randn({2}), 0); }, "DtypeError",
                   "where: condition must be bool, got float64"},
                  {"a number that int64 does not hold",
                   [=] { run(mask, Tensor::zeros({2}, Dtype::kInt64), 0.5); }, "ValueError",
                   "where: int64 needs whole numbers in its range, got 0.5"},
                  {"a condition of another shape", [=] { run(mask, randn({3}), 0); }, "ShapeError",
                   "where: shapes [2] and [3] do not broadcast"}};
  return entry;
}

OpEntry masked_fill_entry() {
  OpEntry entry{.op = "masked_fill", .dtypes = kAllDtypes, .saved_by = "where"};
  entry.run = [](const TensorList& in, const Json& args) {
    return TensorList{ops::masked_fill(in[0], in[1], args["value"])};
  };
  entry.reference = [](const Arrays& in, const Json& args) {
    Array y(broadcast(in[0].shape, in[1].shape));
    for_each_index(y.shape, [&](const Shape& i) {
      y[i] = broadcast_at(in[1], i) != 0 ? args["value"].get<double>() : broadcast_at(in[0], i);
    });
    return Arrays{y};
  };
  const auto sample = [](const std::string& what, const Shape& a, const Shape& mask) {
    return OpSample{.what = what,
                    .inputs = {{.shape = a}, {.shape = mask, .draw = Draw::kMask, .saved = true}},
                    .args = {{"value", 1}}};
  };
  entry.samples = {sample("one shape", {3, 5}, {3, 5}), sample("rows", {3, 5}, {3, 1}),
                   sample("columns", {2, 3, 4}, {4}),   sample("all or nothing", {2, 3}, {}),
                   sample("a wider mask", {3}, {2, 3}), sample("nothing", {0, 2}, {2})};
  entry.errors = {{"a mask of another shape",
                   [] {
                     ops::masked_fill(randn({3}), Tensor::zeros({3, 2}, Dtype::kBool), 0);
                   },
                   "ShapeError", "masked_fill: shapes [3] and [3, 2] do not broadcast"},
                  {"a mask of numbers", [] { ops::masked_fill(randn({3}), randn({3}), 0); },
                   "DtypeError", "masked_fill: mask must be bool, got float64"}};
  return entry;
}

}  // namespace

std::vector<OpEntry> mask_entries() {
  using Tensors = Tensor (*)(const Tensor&, const Tensor&);
  using Number = Tensor (*)(const Tensor&, double);
  struct Comparison {
    std::string op;
    Tensors tensors;
    Number number;
    Compare compare;
  };
  const std::vector<Comparison> comparisons{
      {"eq", ops::eq, ops::eq, std::equal_to<>()}, {"ne", ops::ne, ops::ne, std::not_equal_to<>()},
      {"lt", ops::lt, ops::lt, std::less<>()},     {"le", ops::le, ops::le, std::less_equal<>()},
      {"gt", ops::gt, ops::gt, std::greater<>()},  {"ge", ops::ge, ops::ge, std::greater_equal<>()},
  };
  std::vector<OpEntry> entries;
  for (const auto& [op, tensors, number, compare] : comparisons) {
    entries.push_back(compare_entry(op, tensors, compare));
    entries.push_back(compare_number_entry(op, number, compare));
  }
  entries.push_back(
      logical_entry("logical_and", ops::logical_and, [](bool a, bool b) { return a && b; }));
  entries.push_back(
      logical_entry("logical_or", ops::logical_or, [](bool a, bool b) { return a || b; }));
  entries.push_back(logical_not_entry());
  entries.push_back(isnan_entry());
  entries.push_back(fold_entry("any", ops::any, 0));
  entries.push_back(fold_entry("all", ops::all, 1));
  entries.push_back(fold_dim_entry("any", ops::any, 0));
  entries.push_back(fold_dim_entry("all", ops::all, 1));
  entries.push_back(nonzero_entry());
  entries.push_back(where_entry());
  entries.push_back(where_number_entry(true));
  entries.push_back(where_number_entry(false));
  entries.push_back(masked_fill_entry());
  return entries;
}

}  // namespace moegrad::test
