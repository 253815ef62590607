// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/graph.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "framework/autograd/checkpoint.h"
#include "framework/runtime/rank_context.h"
#include "framework/runtime/thread_state.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::graph_test {
namespace {

using namespace test;

std::string dot(const Tensor& root) {
  std::ostringstream out;
  write_dot(root, out);
  return out.str();
}

TEST(Graph, WritesFunctionsLeavesAndInputsAsDot) {
  Tensor x = variable({2, 3}), w = variable({2, 3}, 2);
  w.storage().set_name("model.norm.weight");
  Tensor h;
  {
    const ScopeGuard model("model", nullptr, nullptr);
    const ScopeGuard norm("model.norm", nullptr, nullptr);
    h = mul(x, w);
  }
  EXPECT_EQ(dot(add(h, add(randn({2, 3}), x))),
            "digraph G {\n"
            "0[label=\"add\\n[2, 3]\"];\n"
            "1[label=\"add\\n[2, 3]\"];\n"
            "2[label=\"mul\\n[2, 3]\\nsaves 96 bytes\\nmodel.norm\"];\n"
            "3[shape=box, label=\"leaf\\n[2, 3]\"];\n"
            "4[shape=box, label=\"model.norm.weight\\n[2, 3]\"];\n"
            "0->2 [label=\"0\"];\n"
            "0->1 [label=\"1\"];\n"
            "1->3 [label=\"1\"];\n"
            "2->3 [label=\"0\"];\n"
            "2->4 [label=\"1\"];\n"
            "}\n");
}

TEST(Graph, ListsEveryOutputShapeAndParallelEdges) {
  const Tensor x = variable({4});
  const auto parts = halves(x);
  EXPECT_EQ(dot(mul(parts[1], parts[0])),
            "digraph G {\n"
            "0[label=\"mul\\n[2]\\nsaves 32 bytes\"];\n"
            "1[label=\"halves\\n[2], [2]\"];\n"
            "2[shape=box, label=\"leaf\\n[4]\"];\n"
            "0->1 [label=\"0\"];\n"
            "0->1 [label=\"1\"];\n"
            "1->2 [label=\"0\"];\n"
            "}\n");
}

TEST(Graph, EscapesNames) {
  Tensor x = variable({1});
  x.storage().set_name("a \"b\" \\c");
  EXPECT_EQ(dot(x), "digraph G {\n0[shape=box, label=\"a \\\"b\\\" \\\\c\\n[1]\"];\n}\n");
}

TEST(Graph, IsTheSameTextForTheSameProgram) {
  const auto program = [] {
    Tensor h = variable({2});
    for (int i = 0; i < 10; ++i) h = add(mul(h, variable({2}, 2)), h);
    return dot(h);
  };
  EXPECT_EQ(program(), program());
}

TEST(Graph, SummaryCountsWhatIsReachable) {
  const Tensor x = variable({4}), w = variable({4}, 2);
  const Tensor h = mul(x, w);
  mul(h, h);  // not behind the root
  const auto summary = summarize_graph(add(h, add(h, x)));
  EXPECT_EQ(summary.functions, 3);
  EXPECT_EQ(summary.edges, 6);
  EXPECT_EQ(summary.leaves, 2);
  EXPECT_EQ(summary.saved_bytes, 2 * 4 * 8);
  EXPECT_TRUE(summary.is_dag);
}

TEST(Graph, BackwardLeavesTheShapeButNoSavedBytes) {
  const Tensor x = variable({4});
  const Tensor y = mul(x, x);
  y.backward(Tensor::ones({4}, Dtype::kFloat64));
  EXPECT_EQ(summarize_graph(y).saved_bytes, 0);
  EXPECT_EQ(summarize_graph(y).functions, 1);
}

TEST(Graph, ShowsACheckpointAsOneFunction) {
  const Tensor x = variable({4});
  const auto y = checkpoint(
      [](const TensorList& in) -> TensorList { return {mul(mul(in[0], in[0]), in[0])}; }, {x});
  EXPECT_EQ(summarize_graph(y[0]).functions, 1);
  EXPECT_EQ(summarize_graph(y[0]).saved_bytes, 32);
}

TEST(Graph, OfATensorWithoutGradientIsRefused) {
  const std::string message = "graph: the tensor does not require a gradient and has no graph";
  EXPECT_EQ(message_of<Error>([] { summarize_graph(randn({2})); }), message);
  EXPECT_EQ(message_of<Error>([] { dot(randn({2})); }), message);
}

TEST(Graph, ALongChainIsNoRecursion) {
  std::jthread([state = ThreadState::capture()] {  // with the default stack
    const ThreadStateGuard guard(state);
    Tensor y = variable({1});
    for (int i = 0; i < 100'000; ++i) y = add(y, y);
    const auto summary = summarize_graph(y);
    EXPECT_EQ(summary.functions, 100'000);
    EXPECT_EQ(summary.edges, 200'000);
    EXPECT_TRUE(summary.is_dag);
  });
}

/// x * w with a cost of its own.
class Costly final : public Function {
 public:
  explicit Costly(double flops) : flops_(flops) {}
  std::string_view name() const override { return "costly"; }
  double flops() const override { return flops_; }
  Tensor forward(const Tensor& a, const Tensor& b) { return test::zip(a, b, std::multiplies<>()); }
  TensorList backward(const TensorList& grads, InputMask /*needs*/) override {
    return {grads[0], grads[0]};
  }

 private:
  double flops_;
};

Tensor costly(double flops, const Tensor& a, const Tensor& b) {
  return apply<Costly>(made_with(flops), a, b);
}

TEST(CriticalPath, IsTheLongestChainByOperations) {
  const Tensor x = variable({3});
  Tensor long_way, short_way;
  {
    const ScopeGuard scope("experts", nullptr, nullptr);
    long_way = costly(100, costly(30, x, x), x);  // 130
    short_way = costly(120, x, x);
  }
  const auto path = critical_path(add(mul(short_way, long_way), x));
  EXPECT_EQ(path.total_flops, 100 + 30 + 120 + 3 + 3);
  EXPECT_EQ(path.flops, 130 + 3 + 3);
  ASSERT_EQ(path.steps.size(), 4);
  EXPECT_EQ(path.steps[0].flops, 30);
  EXPECT_EQ(path.steps[0].path, "experts");
  EXPECT_EQ(path.steps[1].flops, 100);
  EXPECT_EQ(path.steps[2].name, "mul");
  EXPECT_EQ(path.steps[3].name, "add");
  EXPECT_EQ(path.steps[3].path, "");
}

TEST(CriticalPath, CountsFunctionsThatCostNothing) {
  const Tensor x = variable({3});
  const auto path = critical_path(costly(0, costly(0, x, x), x));
  EXPECT_EQ(path.flops, 0);
  EXPECT_EQ(path.steps.size(), 2);
  const auto leaf = critical_path(x);
  EXPECT_EQ(leaf.flops, 0);
  EXPECT_TRUE(leaf.steps.empty());
}

TEST(LiveBytes, FollowsForwardAndBackward) {
  const Tensor x = variable({4}), w = variable({4}, 2);  // 32 bytes each
  Tensor root;
  {
    const Tensor h = mul(x, w);  // saves leaves alone
    const Tensor square = mul(h, h);
    root = add(mul(square, h), x);
  }
  const auto profile = live_bytes_profile(root);
  ASSERT_EQ(profile.size(), 8);
  std::vector<std::vector<std::int64_t>> rows;
  for (const auto& entry : profile) {
    rows.push_back({entry.backward, entry.saved, entry.gradients, entry.leaf_gradients});
  }
  EXPECT_EQ(rows, (std::vector<std::vector<std::int64_t>>{
                      {0, 0, 0, 0},     // x * w
                      {0, 32, 0, 0},    // h * h saves h, once
                      {0, 64, 0, 0},    // saves square as well
                      {0, 64, 0, 0},    // + x saves nothing
                      {1, 64, 64, 32},  // of root and cube; x
                      {1, 64, 96, 32},  // of cube, square and h
                      {1, 32, 64, 32},  // of square and h
                      {1, 0, 32, 64}    // of h; w, and x again
                  }));
  EXPECT_EQ(profile[5].total(), 192);
}

TEST(LiveBytes, EqualsTheArenaAfterForward) {
  const auto live = [] { return RankContext::current().arena()->live()[MemoryTag::kActivations]; };
  const Tensor x = variable({16});
  const auto before = live();
  Tensor y = x;
  for (int i = 0; i < 5; ++i) y = mul(y, y);
  const Tensor root = add(y, y);
  y = Tensor();
  const auto profile = live_bytes_profile(root);
  const auto last_of_forward = profile[profile.size() / 2 - 1];
  // The root is held by its handle, and the last product by nobody.
  EXPECT_EQ(live() - before, last_of_forward.saved + 16 * 8);
}

TEST(LiveBytes, ALongChainIsNoRecursion) {
  const Tensor x = variable({1});
  Tensor y = x;
  for (int i = 0; i < 100'000; ++i) y = mul(y, y);
  EXPECT_EQ(live_bytes_profile(y).size(), 200'000);
  EXPECT_EQ(critical_path(y).flops, 100'000);
}

TEST(LiveBytes, OfATensorWithoutGradientIsRefused) {
  EXPECT_EQ(message_of<Error>([] { live_bytes_profile(randn({2})); }),
            "graph: the tensor does not require a gradient and has no graph");
}

}  // namespace
}  // namespace moegrad::graph_test
