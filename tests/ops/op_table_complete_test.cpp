// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "tests/ops/declared_functions.h"
#include "tests/ops/op_table.h"
#include "tests/source_dir.h"
#include "tests/testing.h"

namespace moegrad::test::op_table_complete_test {
namespace {

// What ops/*.h declares and is no op, with the reason. Ops run through all of it.
const std::map<std::string, std::string> kHelpers{
    {"all_gather", "a collective, tested on ranks in collectives_test.cpp"},
    {"all_reduce", "a collective, tested on ranks in collectives_test.cpp"},
    {"all_to_all", "a collective, tested on ranks in collectives_test.cpp"},
    {"broadcast", "a collective, tested on ranks in collectives_test.cpp"},
    {"combine_rows", "a collective, tested on ranks in dispatch_rows_test.cpp"},
    {"dispatch_rows", "a collective, tested on ranks in dispatch_rows_test.cpp"},
    {"column_parallel_linear", "a collective, tested on ranks in parallel_linear_test.cpp"},
    {"copy_to_ranks", "a collective, tested on ranks in tensor_parallel_test.cpp"},
    {"gather_from_ranks", "a collective, tested on ranks in tensor_parallel_test.cpp"},
    {"reduce_from_ranks", "a collective, tested on ranks in tensor_parallel_test.cpp"},
    {"mm_all_reduce", "a collective, tested on ranks in mm_all_reduce_test.cpp"},
    {"row_parallel_linear", "a collective, tested on ranks in parallel_linear_test.cpp"},
    {"scatter_to_ranks", "a collective, tested on ranks in tensor_parallel_test.cpp"},
    {"vocabulary_parallel_embedding",
     "a collective, tested on ranks in parallel_vocabulary_test.cpp"},
    {"recv", "a collective, tested on ranks in collectives_test.cpp"},
    {"reduce_scatter", "a collective, tested on ranks in collectives_test.cpp"},
    {"send", "a collective, tested on ranks in collectives_test.cpp"},
    {"as_matrix", "of linear; linear_test.cpp"},
    {"check_collective", "a check: collectives report its error"},
    {"checked_linear", "a check: linear reports its error"},
    {"cross_entropy_rows", "of cross_entropy; parallel_vocabulary_test.cpp"},
    {"gather_parts", "of collectives; tensor_parallel_test.cpp"},
    {"linear_gradients", "of linear; linear_test.cpp"},
    {"linear_product", "of linear; linear_test.cpp"},
    {"scatter_sum", "of collectives; collectives_test.cpp"},
    {"sum_in_place", "of collectives; collectives_test.cpp"},
    {"with_last_dim", "of linear; linear_test.cpp"},
    {"allclose", "a truth value; compare_test.cpp"},
    {"equal", "a truth value; compare_test.cpp"},
    {"operator+=(Tensor, Tensor)", "in place; elementwise_test.cpp"},
    {"operator+=(Tensor, double)", "in place; elementwise_test.cpp"},
    {"operator-=(Tensor, Tensor)", "in place; elementwise_test.cpp"},
    {"operator-=(Tensor, double)", "in place; elementwise_test.cpp"},
    {"operator*=(Tensor, Tensor)", "in place; elementwise_test.cpp"},
    {"operator*=(Tensor, double)", "in place; elementwise_test.cpp"},
    {"operator/=(Tensor, Tensor)", "in place; elementwise_test.cpp"},
    {"operator/=(Tensor, double)", "in place; elementwise_test.cpp"},
    {"broadcast_shapes", "shapes only: every binary op reports its error"},
    {"broadcast_strides", "strides only"},
    {"can_expand", "shapes only: expand reports its error"},
    {"cast_hint", "the end of a message"},
    {"cast_to_nz", "from float32 to bfloat16 alone: bf16_products_test.cpp"},
    {"check_arithmetic_dtype", "a check: the norms, rope and swiglu report its error"},
    {"check_blocks", "a check: the grouped products report its error"},
    {"check_choice_bias", "a check: choose_experts reports its error"},
    {"check_expert_choice", "a check: choose_experts reports its error"},
    {"check_floating(string_view, Tensor)", "a check: the ops report its error"},
    {"check_floating(string_view, string_view, Tensor)", "a check: the ops report its error"},
    {"check_indices", "a check: embedding and index_select report its error"},
    {"check_matmul_operands", "a check: matmul reports its error"},
    {"check_norm_eps", "a check: the norms report its error"},
    {"check_norm_dtype", "a check: rms_norm and add_rms_norm report its error"},
    {"check_operands", "a check: the ops report its error"},
    {"check_operands_of_any_dtype", "a check: views and copies report its error"},
    {"check_reals(string_view, Tensor)", "a check: the ops report its error"},
    {"check_reals(string_view, string_view, Tensor)", "a check: the ops report its error"},
    {"check_rms_norm_weight", "a check: the norms report its error"},
    {"check_rope_table", "a check: rope and rms_norm_rope report its error"},
    {"check_same_dtype", "a check: the ops report its error"},
    {"count_exchange", "counters only; exchange_test.cpp"},
    {"issue_into", "the asynchrony of the collectives, tested there"},
    {"for_backward", "a label; collectives_test.cpp"},
    {"for_tile", "a queue; parallel_linear_test.cpp"},
    {"constant_weights", "of cross_entropy; its entry"},
    {"cross_entropy_terms", "the checks of the two cross-entropies, tested there"},
    {"check_operand(string_view, Tensor, size, bool)", "a check: the ops report its error"},
    {"check_operand(string_view, TensorList, size, bool)", "a check: cat reports its error"},
    {"data_or_null", "a pointer"},
    {"dequantized", "of mm_all_reduce; quantized_product_test.cpp"},
    {"extents_at", "sizes only"},
    {"grouped_matmul(Tensor, Tensor, RowGroups, bool)", "by source; grouped_matmul_test.cpp"},
    {"npu_gmm(Tensor, Tensor, RowGroups)", "by source; grouped_matmul_test.cpp"},
    {"multiply_column_groups", "the backward of linear and grouped_matmul; checks nothing"},
    {"multiply_columns", "a piece of the backward of linear_cross_entropy; checks nothing"},
    {"multiply_row_groups", "the forward of linear and grouped_matmul; checks nothing"},
    {"multiply_rows", "a piece of linear_cross_entropy; checks nothing"},
    {"mean(Tensor, initializer_list<int64>, bool)", "mean over dims, in braces; reduce_test.cpp"},
    {"mutable_data_or_null", "a pointer"},
    {"reduced_shape", "sizes only"},
    {"row_ids", "a check: dropout and jitter report its error"},
    {"split(Tensor, initializer_list<int64>, int64)", "split in braces; split_cat_test.cpp"},
    {"stored_matrices", "descriptions of a weight's matrices; checks nothing"},
    {"widened", "cast to a dtype that it knows"},
    {"sum(Tensor, initializer_list<int64>, bool)", "sum over dims, in braces; reduce_test.cpp"},
    {"sum_to_shape", "the backward of expand and of binary ops; checks nothing"},
    {"weight_gradient", "the backward of the grouped products; checks nothing"},
    {"wrap_dim", "a check: the ops report its error"},
};

std::vector<DeclaredFunction> declared_in_headers() {
  std::vector<DeclaredFunction> functions;
  for (const auto* folder : {"ops", "ops/compat"}) {
    for (const auto& file : std::filesystem::directory_iterator(test::source_dir() / folder)) {
      if (file.path().extension() != ".h") continue;
      std::ifstream stream(file.path());
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      std::ranges::copy(declared_functions(text), std::back_inserter(functions));
    }
  }
  return functions;
}

// As OpEntry::key(): overloads by their parameters.
std::set<std::string> keys_of(const std::vector<DeclaredFunction>& functions) {
  std::map<std::string, std::set<std::string>> overloads;
  for (const auto& function : functions) overloads[function.name].insert(function.parameters);
  std::set<std::string> keys;
  for (const auto& [name, parameters] : overloads) {
    for (const auto& each : parameters) {
      keys.insert(parameters.size() == 1 ? name : name + '(' + each + ')');
    }
  }
  return keys;
}

TEST(DeclaredFunctions, AreFoundWhateverStandsAroundThem) {
  const auto functions = declared_functions(R"cpp(
#pragma once
#include <vector>
#define MACRO(x) Tensor hidden(x);
    // Tensor in_a_comment();
    /* Tensor in_another(); */
    namespace moegrad {
    class Tensor;
    }
    namespace moegrad::ops {
    using Callback = void (*)(int);
    inline constexpr int kSize = f(3);
    constexpr auto kNames = "a; (b)";
    enum class Kind { kA, kB };
    struct Options {
      int member() const { return 1; }
      double value = g(2);
    };
    class Op final : public Function {
     public:
      Tensor forward(const Tensor& x);
    };
    Tensor plain(const Tensor& a, double b = 1.5);
    template <class T>
    Tensor plain(const Tensor& a, T b) = delete;
    template <class T, std::vector<T>>
    std::function<void(int)> returns_a_function(const std::vector<std::int64_t>& sizes,
                                                const Options& options = {}, bool flag = (1 < 2));
    inline int with_body(char c = ';') {
      if (c == '}') {
        return helper(c);
      }
      return 0;
    }
    }  // namespace moegrad::ops
    namespace moegrad {
    Tensor operator-(const Tensor& a);
    std::ostream& operator<<(std::ostream& out, Tensor);
    namespace {
    void nothing();
    }
    }  // namespace moegrad
  )cpp");
  const std::vector<DeclaredFunction> expected{
      {"moegrad::ops", "plain", "Tensor, double"},
      {"moegrad::ops", "returns_a_function", "vector<int64>, Options, bool"},
      {"moegrad::ops", "with_body", "char"},
      {"moegrad", "operator-", "Tensor"},
      {"moegrad", "operator<<", "ostream, Tensor"},
      {"moegrad::(anonymous)", "nothing", ""}};
  ASSERT_EQ(functions.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(functions[i].scope, expected[i].scope);
    EXPECT_EQ(functions[i].name, expected[i].name);
    EXPECT_EQ(functions[i].parameters, expected[i].parameters);
  }
}

TEST(OpTableIsComplete, EveryPublicFunctionHasAnEntry) {
  std::set<std::string> entries;
  for (const auto& entry : op_table()) {
    EXPECT_TRUE(entries.insert(entry.key()).second) << entry.key() << " stands there twice";
  }
  const auto declared = keys_of(declared_in_headers());
  for (const auto& key : declared) {
    EXPECT_TRUE(entries.contains(key) || kHelpers.contains(key))
        << key << " has no entry in the op table (tests/ops/op_table.h)";
  }
  for (const auto& key : entries) {
    EXPECT_TRUE(declared.contains(key)) << key << " has an entry, but no header declares it";
    EXPECT_FALSE(kHelpers.contains(key)) << key << " has an entry and is listed as a helper";
  }
  for (const auto& [key, reason] : kHelpers) {
    EXPECT_TRUE(declared.contains(key))
        << key << " is listed as a helper, but no header declares it";
  }
}

TEST(OpTableIsComplete, EveryEntryHasSamplesAndErrors) {
  for (const auto& entry : op_table()) {
    SCOPED_TRACE(entry.key());
    std::set<std::string> names;
    std::int64_t with_differences = 0;
    bool odd = false;
    bool empty = std::ranges::any_of(entry.errors, [](const OpError& error) {
      return error.what == "nothing";  // which an op of at least one element refuses
    });
    for (const auto& sample : entry.samples) {
      EXPECT_TRUE(names.insert(sample.what).second) << sample.what << " stands there twice";
      with_differences += sample.differences == Differences::kEveryElement;
      for (const auto& input : sample.inputs) {
        empty |= input.shape.numel() == 0;
        odd |=
            std::ranges::any_of(input.shape, [](auto size) { return size > 1 && size % 2 == 1; });
      }
    }
    EXPECT_GE(with_differences, 3) << "samples";
    EXPECT_TRUE(empty) << "needs a sample with an empty input";
    EXPECT_TRUE(odd) << "needs a sample with an odd size";
    EXPECT_GE(entry.errors.size(), 1U);
  }
}

}  // namespace
}  // namespace moegrad::test::op_table_complete_test
