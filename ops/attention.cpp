// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens, Nq query heads, Nkv key/value heads, D head dimension.
#include "ops/attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/runtime/parallel_for.h"
#include "framework/runtime/random.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "ops/checks.h"
#include "ops/copies.h"
#include "ops/data_or_null.h"
#include "ops/kernels/attention_backward.h"
#include "ops/kernels/attention_forward.h"
#include "ops/kernels/dropout_words.h"
#include "ops/row_ids.h"

namespace moegrad::ops {
namespace {

kernels::AttentionSizes sizes_of(const Tensor& q, const Tensor& k) {
  return {.tokens = q.dim(0), .query_heads = q.dim(1), .kv_heads = k.dim(1), .head_dim = q.dim(2)};
}

// Calls body(task, scratch) for every task. Each thread has its own scratch and takes the next task
// when it is free, because tasks differ in length. They write disjoint results, so the bits do not
// depend on which thread runs which task.
template <class T, class Body>
void run_tasks(std::int64_t tasks, std::int64_t scratch_size, const Body& body) {
  const auto lanes = std::min<std::int64_t>(tasks, RankContext::current().pool().threads());
  Tensor scratch = Tensor::empty({lanes, scratch_size}, dtype_of<T>);
  T* const base = scratch.mutable_data<T>().data();
  std::atomic<std::int64_t> next{0};
  parallel_for(lanes, 1, [&](std::int64_t lane, std::int64_t) {
    for (auto task = next++; task < tasks; task = next++) body(task, base + lane * scratch_size);
  });
}

// What the options say without their tensors.
struct PairRules {
  bool causal = true;
  std::int64_t window = 0;  // kernels::AttentionPairs
  double dropout = 0;
  std::uint64_t seed = 0;
  std::string purpose = {};
};

// With s = scale q.k, p = softmax(s) = exp(s - logsumexp), o = sum_j p_j v_j and g = dL/do:
//     dL/dv_j = sum over rows of p_j g
//     dL/ds_j = p_j (g.v_j - sum_i p_i g.v_i) = p_j (g.v_j - g.o)
//     dL/dq = scale sum_j dL/ds_j k_j,   dL/dk_j = scale sum over rows of dL/ds_j q
// where the rows of a key/value head are the rows of all its query heads. With dropout: Note
// [Blocked attention].
class Attention final : public Function {
 public:
  Attention(std::vector<kernels::Document> documents, double scale, PairRules rules)
      : documents_(std::move(documents)), scale_(scale), rules_(std::move(rules)) {}

  std::string_view name() const override { return "attention"; }
  /// Two products over the keys that each query sees, those among them that are not allowed.
  double flops() const override {
    double pairs = 0.0;
    for (const auto& document : documents_) {
      const auto length = static_cast<double>(document.end - document.begin);
      const auto window = std::min(length, static_cast<double>(rules_.window));
      pairs += rules_.causal ? window * (window + 1.0) / 2.0 + (length - window) * window
                             : length * length;
    }
    const auto& q = edges()[0].shape;
    return 4.0 * pairs * static_cast<double>(q[1] * q[2]);
  }

  Tensor forward(const Tensor& given_q, const Tensor& given_k, const Tensor& given_v,
                 const Tensor& allowed, const Tensor& ids) {
    const Tensor q = widened(given_q), k = widened(given_k), v = widened(given_v);
    const auto sizes = sizes_of(q, k);
    Tensor out = Tensor::empty(q.shape(), q.dtype());
    Tensor logsumexp = Tensor::empty({sizes.query_heads, sizes.tokens}, q.dtype());
    std::vector<std::array<std::int64_t, 3>> tasks;  // document, key/value head, query block
    for (std::size_t i = 0; i < documents_.size(); ++i) {
      const auto length = documents_[i].end - documents_[i].begin;
      for (std::int64_t head = 0; head < sizes.kv_heads; ++head) {
        for (std::int64_t block = 0; block * sizes.query_block() < length; ++block) {
          tasks.push_back({static_cast<std::int64_t>(i), head, block});
        }
      }
    }
    const auto randoms = random_of_heads(sizes, ids);
    const auto pairs = pairs_of(sizes, allowed, ids, randoms);
    dispatch_floating(q.dtype(), [&]<class T>() {
      const T* const q_data = q.data<T>().data();
      const T* const k_data = k.data<T>().data();
      const T* const v_data = v.data<T>().data();
      T* const out_data = out.mutable_data<T>().data();
      T* const logsumexp_data = logsumexp.mutable_data<T>().data();
      run_tasks<T>(static_cast<std::int64_t>(tasks.size()),
                   kernels::attention_forward_scratch<T>(sizes),
                   [&](std::int64_t task, T* scratch) {
                     const auto [i, head, block] = tasks[static_cast<std::size_t>(task)];
                     kernels::attention_forward<T>(sizes, pairs, q_data, k_data, v_data,
                                                   static_cast<T>(scale_),
                                                   documents_[static_cast<std::size_t>(i)], head,
                                                   block, out_data, logsumexp_data, scratch);
                   });
    });
    if (given_q.dtype() != out.dtype()) out = to_dtype(out, given_q.dtype());
    q_ = given_q;
    k_ = given_k;
    v_ = given_v;
    out_ = out;
    logsumexp_ = logsumexp;
    allowed_ = allowed;
    ids_ = ids;
    return out;
  }

  TensorList backward(const TensorList& grads, InputMask needs) override {
    const Tensor grad_out = widened(contiguous(grads[0]));
    const Tensor q = widened(q_.unpack()), k = widened(k_.unpack()), v = widened(v_.unpack());
    const Tensor out = widened(out_.unpack()), logsumexp = logsumexp_.unpack();
    const Tensor allowed = allowed_.unpack(), ids = ids_.unpack();
    const auto sizes = sizes_of(q, k);
    const auto randoms = random_of_heads(sizes, ids);
    const auto pairs = pairs_of(sizes, allowed, ids, randoms);
    Tensor grad_q = needs[0] ? Tensor::empty(q.shape(), q.dtype()) : Tensor();
    Tensor grad_k = needs[1] ? Tensor::zeros(k.shape(), k.dtype()) : Tensor();
    Tensor grad_v = needs[2] ? Tensor::zeros(v.shape(), v.dtype()) : Tensor();
    dispatch_floating(q.dtype(), [&]<class T>() {
      const kernels::AttentionGrads<T> targets{mutable_data_or_null<T>(grad_q),
                                               mutable_data_or_null<T>(grad_k),
                                               mutable_data_or_null<T>(grad_v)};
      const T* const q_data = q.data<T>().data();
      const T* const k_data = k.data<T>().data();
      const T* const v_data = v.data<T>().data();
      const T* const out_data = out.data<T>().data();
      const T* const logsumexp_data = logsumexp.data<T>().data();
      const T* const grad_out_data = grad_out.data<T>().data();
      const auto tasks = static_cast<std::int64_t>(documents_.size()) * sizes.kv_heads;
      run_tasks<T>(
          tasks, kernels::attention_backward_scratch<T>(sizes), [&](std::int64_t task, T* scratch) {
            kernels::attention_backward<T>(
                sizes, pairs, q_data, k_data, v_data, out_data, logsumexp_data, grad_out_data,
                static_cast<T>(scale_), documents_[static_cast<std::size_t>(task / sizes.kv_heads)],
                task % sizes.kv_heads, targets, scratch);
          });
    });
    return {grad_q, grad_k, grad_v, Tensor(), Tensor()};
  }

 private:
  // None without ids, that is, without dropout.
  std::vector<Random> random_of_heads(const kernels::AttentionSizes& sizes,
                                      const Tensor& ids) const {
    std::vector<Random> randoms;
    for (std::int64_t head = 0; ids.defined() && head < sizes.query_heads; ++head) {
      randoms.push_back(kernels::dropout_of_head(rules_.seed, rules_.purpose, head));
    }
    return randoms;
  }
  // It refers to the other arguments.
  kernels::AttentionPairs pairs_of(const kernels::AttentionSizes& sizes, const Tensor& allowed,
                                   const Tensor& ids, const std::vector<Random>& randoms) const {
    const bool by_head = allowed.defined() && allowed.ndim() == 3;
    return {.causal = rules_.causal,
            .window = rules_.window,
            .allowed = data_or_null<bool>(allowed),
            .allowed_head_step = by_head ? sizes.tokens * sizes.tokens : 0,
            .random_of_head = ids.defined() ? randoms.data() : nullptr,
            .ids = data_or_null<std::int64_t>(ids),
            .dropout = rules_.dropout};
  }

  std::vector<kernels::Document> documents_;
  double scale_;
  PairRules rules_;
  SavedTensor q_{*this};
  SavedTensor k_{*this};
  SavedTensor v_{*this};
  SavedTensor out_{*this};
  SavedTensor logsumexp_{*this};
  SavedTensor allowed_{*this};
  SavedTensor ids_{*this};
};

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check<ShapeError>(q.ndim() == 3, "attention: q must be [T, Nq, D], got ", q.shape());
  check<ShapeError>(k.ndim() == 3, "attention: k must be [T, Nkv, D], got ", k.shape());
  check<ShapeError>(k.dim(0) == q.dim(0) && k.dim(2) == q.dim(2), "attention: k must be [",
                    q.dim(0), ", Nkv, ", q.dim(2), "] to match q ", q.shape(), ", got ", k.shape());
  check<ShapeError>(v.shape() == k.shape(), "attention: v must be ", k.shape(), " to match k, got ",
                    v.shape());
  check<ShapeError>(q.dim(2) >= 1, "attention: head dimension must be at least 1, got q ",
                    q.shape());
  check<ShapeError>(k.dim(1) >= 1 && q.dim(1) >= 1 && q.dim(1) % k.dim(1) == 0,
                    "attention: query heads must be a multiple of key/value heads, got ", q.dim(1),
                    " and ", k.dim(1));
  check<DtypeError>(k.dtype() == q.dtype() && v.dtype() == q.dtype(),
                    "attention: q, k and v must be of one dtype, got ", q.dtype(), ", ", k.dtype(),
                    " and ", v.dtype());
  check_reals("attention", "q", q);
}

void check_options(const Tensor& q, const AttentionOptions& options) {
  check<ValueError>(options.mask != AttentionMask::kSlidingWindow || options.window >= 1,
                    "attention: window must be at least 1, got ", options.window);
  check<ValueError>(options.mask == AttentionMask::kSlidingWindow || options.window == 0,
                    "attention: a window needs the mask kSlidingWindow, got a window of ",
                    options.window, " with another mask");
  const auto tokens = q.dim(0), heads = q.dim(1);
  if (const auto& allowed = options.allowed; allowed.defined()) {
    check<ShapeError>(
        allowed.shape() == Shape{tokens, tokens} || allowed.shape() == Shape{heads, tokens, tokens},
        "attention: allowed must be [", tokens, ", ", tokens, "] or [", heads, ", ", tokens, ", ",
        tokens, "] to match q ", q.shape(), ", got ", allowed.shape());
    check<DtypeError>(allowed.dtype() == Dtype::kBool, "attention: allowed must be bool, got ",
                      allowed.dtype());
  }
  if (!options.dropout) return;
  check<ValueError>(0 <= options.dropout->p && options.dropout->p < 1,
                    "attention: dropout must be in [0, 1), got ", options.dropout->p);
  if (const auto& ids = options.dropout->ids; ids.defined()) {
    check<ShapeError>(ids.shape() == Shape{tokens}, "attention: dropout ids must be [", tokens,
                      "], got ", ids.shape());
  }
}

// Leaves out empty ones.
std::vector<kernels::Document> documents_of(const Documents& documents) {
  std::vector<kernels::Document> result;
  const auto& offsets = documents.offsets();
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i - 1] < offsets[i]) result.push_back({.begin = offsets[i - 1], .end = offsets[i]});
  }
  return result;
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
                 double scale, const AttentionOptions& options) {
  check_operands("attention", q, k, v);
  check_inputs(q, k, v);
  check<ValueError>(documents.tokens() == q.dim(0), "attention: documents must have the ", q.dim(0),
                    " tokens of q, got ", documents.tokens());
  check_options(q, options);
  const auto tokens = q.dim(0);
  PairRules rules{.causal = options.mask != AttentionMask::kFull,
                  .window = options.mask == AttentionMask::kSlidingWindow
                                ? std::min(options.window, tokens)
                                : tokens};
  Tensor ids;
  if (options.dropout && options.dropout->p != 0) {
    rules.dropout = options.dropout->p;
    rules.seed = options.dropout->seed;
    rules.purpose = options.dropout->purpose;
    ids = row_ids("attention", options.dropout->ids, tokens, kernels::kDropoutIds);
  }
  const Tensor allowed = options.allowed.defined() ? contiguous(options.allowed) : Tensor();
  return apply<Attention>(made_with(documents_of(documents), scale, rules), contiguous(q),
                          contiguous(k), contiguous(v), allowed, ids);
}

}  // namespace moegrad::ops
