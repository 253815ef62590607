// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/graph.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "framework/autograd/checkpoint.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad {
namespace {

using testing::add;
using testing::halves;
using testing::message_of;
using testing::mul;
using testing::randn;
using testing::variable;

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
  std::jthread([] {
    Tensor y = variable({1});
    for (int i = 0; i < 100'000; ++i) y = add(y, y);
    const auto summary = summarize_graph(y);
    EXPECT_EQ(summary.functions, 100'000);
    EXPECT_EQ(summary.edges, 200'000);
    EXPECT_TRUE(summary.is_dag);
  });
}

}  // namespace
}  // namespace moegrad
