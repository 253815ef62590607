// SPDX-License-Identifier: Apache-2.0
#include "optim/parameter_checks.h"

#include <set>
#include <string>

#include "framework/runtime/error.h"

namespace moegrad::optim {

void check_parameters(std::string_view what, const NamedTensors& parameters) {
  std::set<const TensorImpl*> seen;
  std::set<std::string_view> names;
  for (const auto& [name, parameter] : parameters) {
    check<UndefinedTensorError>(parameter.defined(), what, ": parameter '", name,
                                "' must be a defined tensor");
    check<ValueError>(seen.insert(parameter.impl().get()).second, what, ": parameter '", name,
                      "' is given twice");
    check<ValueError>(names.insert(name).second, what, ": two parameters are named '", name,
                      "', but their states are saved by name; put the name of its module in front "
                      "of each");
    check<DtypeError>(
        is_floating(parameter.dtype()), what, ": parameter '", name,
        "' must be float32 or float64, got ", parameter.dtype(),
        parameter.dtype() == Dtype::kBFloat16 ? "; keep it in float32 and call compute_in()" : "");
    check<LayoutError>(parameter.is_contiguous(), what, ": parameter '", name,
                       "' must be contiguous, got shape ", parameter.shape(), " with strides ",
                       parameter.strides(), "; clone() makes a copy that is");
    check(parameter.is_leaf(), what, ": parameter '", name,
          "' must be a leaf of the tape, got a result of ops, which gets no gradient of its own; "
          "detach() it");
  }
}

}  // namespace moegrad::optim
