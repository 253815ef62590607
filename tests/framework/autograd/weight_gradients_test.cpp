// SPDX-License-Identifier: Apache-2.0
#include "framework/autograd/weight_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/micro_batch.h"
#include "framework/autograd/scope.h"
#include "framework/tensor/tensor_impl.h"
#include "tests/framework/autograd/test_functions.h"
#include "tests/testing.h"

namespace moegrad::weight_gradients_test {
namespace {

using namespace test;

constexpr std::int64_t kSize = 64;
constexpr std::int64_t kBytes = kSize * 8;

Tensor vector(std::uint64_t seed) { return randn({kSize}, seed, Dtype::kFloat64); }
Tensor weight(std::uint64_t seed) { return vector(seed).set_requires_grad(true); }

/// x w, whose gradient of w may wait, or `both`; from several sources, if there are any.
class Times final : public Function {
 public:
  explicit Times(int sources = 1, bool both = false, WeightGradientQueue* drained = nullptr)
      : sources_(sources), both_(both), drained_(drained) {}
  std::string_view name() const override { return "times"; }
  bool may_wait(std::size_t i) const override { return i == 1 || both_; }
  Tensor forward(const Tensor& x, const Tensor& w) {
    x_ = x;
    w_ = w;
    return zip(x, w, std::multiplies<>());
  }
  TensorList backward(const TensorList& grads, InputMask needs) override {
    if (drained_ != nullptr) drained_->drain();
    Tensor grad_x, grad_w;
    if (needs[0]) grad_x = zip(grads[0], w_.unpack(), std::multiplies<>());
    if (needs[1]) {
      grad_w = zip(grads[0], x_.unpack(), std::multiplies<>());
      if (sources_ > 1) {
        for (int s = 0; s < sources_; ++s) send(grad_w, s);
        grad_w = Tensor();
      }
    }
    return {grad_x, grad_w};
  }

 private:
  void send(const Tensor& grad, int s) const {
    Tensor term = edited(grad, [s](std::span<double> values) {
      for (auto& value : values) value /= 3 + s;
    });
    InputGradientSink(*this, 1)(std::move(term), {.source = s, .sources = sources_});
  }

  int sources_;
  bool both_;
  WeightGradientQueue* drained_;
  SavedTensor x_{*this}, w_{*this};
};

Tensor times(const Tensor& x, const Tensor& w, int sources = 1, bool both = false) {
  return apply<Times>(made_with(sources, both), x, w);
}

/// What is drained at each node of a backward: `count` gradients, or as many as a number drawn from
/// `seed` says.
struct Drains {
  WeightGradientQueue& queue;
  std::size_t count = 0;
  std::uint64_t seed = 0;
  std::size_t node = 0;

  void at_node() {
    std::size_t now = count;
    if (seed != 0) now = (seed * 2654435761U + 40503U * ++node) / 7 % 4;
    queue.drain(std::min(now, queue.size()));
  }
};

/// Three uses of w, by two kinds of Function, and one of v; `mark` is called between them.
class Model {
 public:
  explicit Model(int sources) : sources_(sources) {}
  Tensor w = weight(1), v = weight(2);

  Tensor operator()(const Tensor& x, const std::function<Tensor(const Tensor&)>& mark) const {
    Tensor h = times(mark(x), w, sources_);
    h = times(mark(h), v);
    h = add(mark(times(h, w, sources_)), h);
    return mark(times(mark(h), w, sources_));
  }

 private:
  int sources_;
};

enum class Form { kPlain, kRecomputed, kTwoMicroBatches };

void backward(const Model& model, Form form, const std::function<void()>& on_node) {
  const auto mark = [&](const Tensor& x) {
    return probe(x, "mark", [&on_node](const Tensor& grad) -> TensorList {
      on_node();
      return {grad};
    });
  };
  const auto run = [&](std::uint64_t seed) {
    const Tensor x = vector(seed).set_requires_grad(true);
    if (form != Form::kRecomputed) return model(x, mark);
    return checkpoint([&](const TensorList& in) { return TensorList{model(in[0], mark)}; }, {x})[0];
  };
  if (form != Form::kTwoMicroBatches) return run(3).backward(vector(4));
  TensorList out;
  for (const int m : {0, 1}) {
    const MicroBatchGuard guard(m);
    out.push_back(run(static_cast<std::uint64_t>(3 + m)));
  }
  run_backward(out, {vector(5), vector(6)}, /*retain_graph=*/false);
}

bool same(const Model& a, const Model& b) {
  return bitwise_equal(a.w.grad(), b.w.grad()) && bitwise_equal(a.v.grad(), b.v.grad());
}

TEST(WeightGradients, HaveTheirBitsWheneverTheQueueIsDrained) {
  for (const int sources : {1, 2, 4}) {
    for (const auto form : {Form::kPlain, Form::kRecomputed, Form::kTwoMicroBatches}) {
      const Model plain(sources);
      backward(plain, form, [] {});
      for (std::uint64_t schedule = 0; schedule < 12; ++schedule) {
        const Model model(sources);
        WeightGradientQueue queue;
        const WeightGradientsGuard guard(queue);
        Drains drains{.queue = queue};
        if (schedule == 1) drains.count = 100;
        if (schedule > 1) drains.seed = schedule;
        std::size_t most = 0;
        backward(model, form, [&] {
          most = std::max(most, queue.size());
          drains.at_node();
        });
        EXPECT_EQ(queue.size(), 0U);
        EXPECT_GE(most, 1U);
        EXPECT_TRUE(same(model, plain))
            << sources << " sources, form " << static_cast<int>(form) << ", schedule " << schedule;
      }
    }
  }
}

TEST(WeightGradients, WaitWithWhatTheyNeed) {
  const Tensor w = weight(1), x = vector(2).set_requires_grad(true);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  std::vector<std::int64_t> held;
  const auto mark = [&](const Tensor& at) {
    return probe(at, "mark", [&](const Tensor& grad) -> TensorList {
      held.push_back(queue.held_bytes());
      if (held.size() == 2) {
        EXPECT_EQ(queue.size(), 1U);
        EXPECT_FALSE(w.grad().defined());
        EXPECT_TRUE(is_gradient_awaited(w));
        EXPECT_FALSE(does_gradient_wait(w));  // another use is to come
      }
      if (held.size() == 3) {
        EXPECT_TRUE(does_gradient_wait(w));
        queue.drain(1);
        held.push_back(queue.held_bytes());
        queue.drain();
        EXPECT_FALSE(is_gradient_awaited(w));
        EXPECT_TRUE(w.grad().defined());
      }
      return {grad};
    });
  };
  mark(times(mark(times(mark(x), w)), w)).backward(vector(3));
  // For each: the gradient of the output, and x; the weight lives anyway.
  EXPECT_EQ(held, (std::vector<std::int64_t>{0, 2 * kBytes, 4 * kBytes, 2 * kBytes}));
  EXPECT_EQ(queue.held_bytes(), 0);
}

// A gradient that does not wait comes after those that came before it.
TEST(WeightGradients, ThatCameFirstAreComputedFirst) {
  const auto net = [](const Tensor& w, const Tensor& x) {
    return times(times(mul(times(mul(x, w), w), w), w), w);
  };
  const Tensor plain = weight(1), w = weight(1), x = vector(2).set_requires_grad(true);
  net(plain, x).backward(vector(3));
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  net(w, x).backward(vector(3));
  EXPECT_TRUE(bitwise_equal(w.grad(), plain.grad()));
}

TEST(WeightGradients, OfBothInputsNeedWhatTheFunctionHasSaved) {
  const Tensor v = weight(1), w = weight(2);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  times(v, w, 1, /*both=*/true).backward(vector(3));
  EXPECT_TRUE(bitwise_equal(v.grad(), zip(vector(3), w, std::multiplies<>())));
  EXPECT_TRUE(bitwise_equal(w.grad(), zip(vector(3), v, std::multiplies<>())));
}

// The backward that would compute it knows nothing of such a leaf.
TEST(WeightGradients, OfALeafThatEachRunOfABodyMakesDoNotWait) {
  Tensor made;
  const auto body = [&made](const TensorList& in) {
    made = weight(1);
    return TensorList{times(in[0], made)};
  };
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  checkpoint(body, {vector(2).set_requires_grad(true)})[0].backward(vector(3));
  EXPECT_TRUE(bitwise_equal(made.grad(), zip(vector(3), vector(2), std::multiplies<>())));
}

TEST(WeightGradients, WaitInTheQueueOfTheInnermostGuard) {
  const Tensor w = weight(1);
  WeightGradientQueue outer, inner;
  std::vector<std::size_t> sizes;
  const auto run = [&] {
    const auto note = [&](const Tensor& grad) -> TensorList {
      sizes.insert(sizes.end(), {outer.size(), inner.size()});
      return {grad};
    };
    times(probe(vector(2).set_requires_grad(true), "note", note), w).backward(vector(3));
  };
  const WeightGradientsGuard guard(outer);
  {
    const WeightGradientsGuard within(inner);
    run();
  }
  run();
  EXPECT_EQ(sizes, (std::vector<std::size_t>{0, 1, 1, 0}));
}

TEST(WeightGradients, KeepALeafsHooksWaitingForTheLast) {
  const Model model(1);
  std::vector<std::size_t> waiting;
  WeightGradientQueue queue;
  const auto note = [&] { waiting.push_back(queue.size()); };
  const auto hook = model.w.register_hook([&](const Tensor& /*grad*/) {
    note();
    return Tensor();
  });
  const auto post = model.w.register_post_accumulate_grad_hook([&](const Tensor&) { note(); });
  const WeightGradientsGuard guard(queue);
  backward(model, Form::kPlain, [] {});
  EXPECT_EQ(waiting, (std::vector<std::size_t>{0, 0}));
}

TEST(WeightGradients, AreNotPutOffByTheFirstOfTwoCalls) {
  const Model plain(1), model(1);
  backward(plain, Form::kPlain, [] {});
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  const Tensor x = vector(3).set_requires_grad(true);
  auto rest = backward_to_inputs({model(x, [](const Tensor& at) { return at; })}, {vector(4)}, {x});
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_FALSE(model.w.grad().defined());
  std::size_t waiting = 0;
  const auto post =
      model.v.register_post_accumulate_grad_hook([&](const Tensor&) { waiting = queue.size(); });
  rest.run();
  EXPECT_EQ(waiting, 1U);  // the first use of w
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_TRUE(same(model, plain));
}

TEST(WeightGradients, ThatAreAskedForComeInTheFirstOfTwoCalls) {
  const Tensor w = weight(1), x = vector(2).set_requires_grad(true);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  auto rest = backward_to_inputs({times(x, w)}, {vector(3)}, {w});
  EXPECT_TRUE(bitwise_equal(w.grad(), zip(vector(3), x, std::multiplies<>())));
  rest.run();
  EXPECT_TRUE(bitwise_equal(x.grad(), zip(vector(3), w, std::multiplies<>())));
}

TEST(WeightGradients, CanBeBroughtAgainByAGraphThatIsRetained) {
  const Tensor w = weight(1), x = vector(2).set_requires_grad(true);
  const Tensor out = times(times(x, w), w);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  out.backward(vector(3), /*retain_graph=*/true);
  const Tensor first = clone(w.grad());
  w.set_grad(Tensor());
  out.backward(vector(3));
  EXPECT_TRUE(bitwise_equal(w.grad(), first));
  EXPECT_EQ(message_of<Error>([&] { out.backward(vector(3)); }).substr(0, 5), "times");
}

TEST(WeightGradients, AreDroppedByABackwardThatFails) {
  const Tensor w = weight(1), x = vector(2).set_requires_grad(true);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  const Tensor out = times(
      probe(times(x, w), "fails", [](const Tensor&) -> TensorList { throw Error("no more"); }), w);
  EXPECT_EQ(message_of<Error>([&] { out.backward(vector(3)); }), "no more");
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_FALSE(w.grad().defined());
}

TEST(WeightGradients, OfABackwardWithinAHookAreItsOwn) {
  const Tensor w = weight(1), v = weight(5), x = vector(2).set_requires_grad(true);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  const auto mark = [&](const Tensor& at) {
    return probe(at, "mark", [&](const Tensor& grad) -> TensorList {
      EXPECT_EQ(queue.size(), 1U);
      const GradModeGuard tape_on(true);
      times(vector(7), v).backward(vector(8));
      EXPECT_TRUE(v.grad().defined());
      EXPECT_EQ(queue.size(), 1U);
      const Tensor inner = times(probe(vector(7).set_requires_grad(true), "drains",
                                       [&](const Tensor& g) -> TensorList {
                                         queue.drain();
                                         return {g};
                                       }),
                                 v);
      EXPECT_EQ(message_of<Error>([&] { inner.backward(vector(8)); }),
                "weight gradient queue: drain() must be called by a hook of the backward that has "
                "put them off");
      return {grad};
    });
  };
  times(mark(x), w).backward(vector(3));
  EXPECT_TRUE(w.grad().defined());
  EXPECT_EQ(queue.size(), 0U);
  queue.drain();  // nothing waits
}

TEST(WeightGradients, KeepTheirOrderWhereABackwardDrains) {
  const auto gradient = [](WeightGradientQueue* drained) {
    const Tensor w = weight(1);
    Tensor h = vector(2).set_requires_grad(true);
    for (int i = 0; i < 5; ++i) h = apply<Times>(made_with(1, false, drained), h, w);
    h.backward(vector(3));
    return w.grad();
  };
  const Tensor expected = gradient(nullptr);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  EXPECT_TRUE(bitwise_equal(gradient(&queue), expected));
}

TEST(WeightGradients, ThatFailedEndTheBackwardThoughAHookCatchesIt) {
  const Tensor w = weight(1), x = vector(2).set_requires_grad(true);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  const Tensor out = times(probe(x, "catches",
                                 [&](const Tensor& grad) -> TensorList {
                                   EXPECT_NE(message_of<Error>([&] { queue.drain(); }), "");
                                   return {grad};
                                 }),
                           w);
  const auto hook = w.register_hook([](const Tensor&) -> Tensor { throw Error("no more"); });
  EXPECT_EQ(message_of<Error>([&] { out.backward(vector(3)); }),
            "weight gradient queue: the error of a gradient that waited must end the backward, but "
            "a hook has caught it");
  EXPECT_EQ(queue.size(), 0U);
}

TEST(WeightGradients, MayOutliveTheirQueue) {
  const Tensor plain = weight(1), w = weight(1), x = vector(2).set_requires_grad(true);
  times(times(x, plain), plain).backward(vector(3));
  auto queue = std::make_unique<WeightGradientQueue>();
  const WeightGradientsGuard guard(*queue);
  const auto ends_queue = [&](const Tensor& grad) -> TensorList {
    queue.reset();
    return {grad};
  };
  times(probe(times(x, w), "ends the queue", ends_queue), w).backward(vector(3));
  EXPECT_TRUE(bitwise_equal(w.grad(), plain.grad()));
}

TEST(WeightGradients, AreCheckedAsOthersAre) {
  const auto with = [](std::uint64_t seed) {
    return edited(vector(seed), [](std::span<double> values) { values[3] = 1e300; });
  };
  const Tensor w = weight(1), x = with(2).set_requires_grad(true);
  WeightGradientQueue queue;
  const WeightGradientsGuard guard(queue);
  const AnomalyModeGuard anomalies;
  const auto forward = [&] {
    const ScopeGuard scope(std::string("layer"), nullptr, nullptr);
    return times(x, w);
  };
  const auto message = message_of<AnomalyError>([&] { forward().backward(with(3)); });
  EXPECT_THAT(message, testing::StartsWith("anomaly: backward of times made inf in the gradient of "
                                           "input 1 [64] at element 3; in module layer"));
}

}  // namespace
}  // namespace moegrad::weight_gradients_test
