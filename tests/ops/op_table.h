// SPDX-License-Identifier: Apache-2.0
#pragma once

// A table of all public ops, in the manner of PyTorch's OpInfo. An entry says how an op is called,
// what it should give, and for which inputs; the tests of op_table_test.cpp and
// op_table_gradients_test.cpp run every entry, op_table_complete_test.cpp demands that every
// function which ops/*.h declare has one, and tests/oracle compares the same samples with PyTorch.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "framework/tensor/tensor.h"
#include "tests/ops/array.h"

namespace moegrad::test {

using Json = nlohmann::json;

inline const std::vector<Dtype> kAllDtypes{Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16,
                                           Dtype::kInt64, Dtype::kBool};
/// For ops that compute in float32 what is bfloat16.
inline const std::vector<Dtype> kReals{Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat64};
/// The dtypes whose elements have an order.
inline const std::vector<Dtype> kOrderedDtypes{Dtype::kFloat32, Dtype::kFloat64, Dtype::kInt64};

/// How the elements of an input are drawn.
enum class Draw {
  kNormal,           // standard normal
  kPositive,         // uniform in [0.5, 2)
  kAwayFromZero,     // normal, moved so that |x| >= 0.5: divisors, and both sides of a kink
  kSixtyFourths,     // normal, rounded to a multiple of 1/64: every floating type but bfloat16
                     // holds it, and its neighbours at 1/1024, exactly
  kIndices,          // int64, uniform in [0, bound)
  kDistinctIndices,  // the same, without repetition in the last dimension
  kMask,             // bool, true as often as false
};

/// What an op makes of an input that is no contiguous row-major tensor.
enum class Strides { kAny, kContiguousOnly };  // same bits, or LayoutError
enum class Nz {                                // FRACTAL_NZ instead of a [K, N] or [B, K, N]
  kRefused,                                    // LayoutError
  kRead,                                       // same bits
  kOtherShapeOnly,                             // ShapeError: these blocks have no such view
};

/// How gradients are compared with finite differences.
enum class Differences {
  kEveryElement,
  kOneDirection,  // many elements, so that several threads have work
  kNone,          // where there is no derivative
};

struct Input {
  Shape shape = {};
  Draw draw = Draw::kNormal;
  std::int64_t bound = 0;          // of indices
  std::vector<double> given = {};  // elements instead of drawn ones
  bool has_gradient = true;        // false: data, such as a mask, when it is floating
  bool saved = false;              // backward reads it, so that it must not be modified before
  Strides strides = Strides::kAny;
  Nz nz = Nz::kRefused;

  bool is_index() const { return draw == Draw::kIndices || draw == Draw::kDistinctIndices; }
  bool is_mask() const { return draw == Draw::kMask; }
  /// Whether it has a dtype of its own, whatever the op computes in.
  bool has_own_dtype() const { return is_index() || is_mask(); }
};

struct OpSample {
  std::string what = {};
  std::vector<Input> inputs = {};
  Json args = Json::object();  // all that is no tensor
  Differences differences = Differences::kEveryElement;
  double gradcheck_eps = 1e-6;
  bool saves_outputs = true;  // false: not even those of OpEntry::saved_outputs
};

struct OpError {
  std::string what;
  std::function<void()> call;
  std::string type;
  std::string message;
};

struct OpEntry {
  std::string op;               // as declared: "rms_norm", "operator+"
  std::string parameters = {};  // of an overload, "Tensor, double"; empty when there is only one
  std::function<TensorList(const TensorList&, const Json&)> run = {};
  /// The same from float64 elements, written without ops.
  std::function<Arrays(const Arrays&, const Json&)> reference = {};
  std::vector<OpSample> samples = {};
  std::vector<OpError> errors = {};
  /// That the inputs without a dtype of their own may have; others are a DtypeError.
  std::vector<Dtype> dtypes = {Dtype::kFloat32, Dtype::kFloat64};
  bool differentiable = true;
  /// How far a gradient in bfloat16 may be from that in float64 (close_to): more where terms
  /// cancel.
  double bf16_gradient_tolerance = 0x1p-8;
  std::vector<std::size_t> saved_outputs = {};  // results that backward reads
  /// The Function that saves, if it is not `op`, or saves another shape.
  std::string saved_by = {};

  /// "rms_norm", "add(Tensor, double)"
  std::string key() const { return parameters.empty() ? op : op + '(' + parameters + ')'; }
};

/// GoogleTest prints parameters with it.
inline void PrintTo(const OpEntry& entry, std::ostream* out) { *out << entry.key(); }

/// log sum_i exp(x[t, i])
double logsumexp(const Array& x, std::int64_t t);

/// Every entry; each group is in op_table_<group>.cpp.
std::vector<OpEntry> op_table();
std::vector<OpEntry> elementwise_entries();
std::vector<OpEntry> operator_entries();
std::vector<OpEntry> view_entries();
std::vector<OpEntry> slice_entries();
std::vector<OpEntry> copy_entries();
std::vector<OpEntry> reduction_entries();
std::vector<OpEntry> mask_entries();
std::vector<OpEntry> index_entries();
std::vector<OpEntry> order_entries();
std::vector<OpEntry> statistics_entries();
std::vector<OpEntry> einsum_entries();
std::vector<OpEntry> row_entries();
std::vector<OpEntry> norm_entries();
std::vector<OpEntry> token_entries();
std::vector<OpEntry> attention_entries();
std::vector<OpEntry> dropout_entries();
std::vector<OpEntry> product_entries();
std::vector<OpEntry> router_entries();
std::vector<OpEntry> routing_entries();
std::vector<OpEntry> loss_entries();
std::vector<OpEntry> layer_entries();
std::vector<OpEntry> aux_loss_entries();
std::vector<OpEntry> nz_entries();
std::vector<OpEntry> npu_entries();

/// The ops that compute in bfloat16, by OpEntry::key(), each with its inputs that are float32 then.
/// Others refuse it, unless they list it among their dtypes: they move elements.
const std::map<std::string, std::vector<std::size_t>>& ops_in_bfloat16();

/// The inputs of a sample, contiguous and row-major: indices are int64, masks bool, all others
/// `dtype`. The same seed gives the same numbers, rounded to the dtype.
TensorList draw_inputs(const OpSample& sample, Dtype dtype, std::uint64_t seed);

/// Standard normal gradients of those of `outputs` that hold reals, undefined for others.
TensorList draw_cotangents(const TensorList& outputs, std::uint64_t seed);

struct Outcome {
  TensorList outputs;
  TensorList grads;  // of the inputs, undefined where there is none
};

/// Runs `entry`, and backward from draw_cotangents, rounded to what `held_by` has; `needs` says
/// which inputs are to require a gradient. The inputs are detached first.
Outcome run_entry(const OpEntry& entry, const OpSample& sample, const TensorList& inputs,
                  const std::vector<bool>& needs, std::uint64_t seed = 0,
                  Dtype held_by = Dtype::kFloat64);

/// The inputs that may require a gradient.
std::vector<bool> inputs_with_gradient(const OpSample& sample, Dtype dtype);

/// A tensor of any strides, layout and dtype.
Array to_array(const Tensor& tensor);

/// FRACTAL_NZ blocks of a floating [K, N] or [B, K, N], element by element, without graph.
Tensor as_nz(const Tensor& tensor);

Shape shape_from(const Json& sizes);
std::vector<std::int64_t> integers_from(const Json& list);

}  // namespace moegrad::test
