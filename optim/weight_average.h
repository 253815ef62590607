// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "framework/tensor/named_tensor.h"

namespace moegrad::optim {

/// An exponential moving average of weights, for evaluation and for the last checkpoint. Each
/// update(), after an optimizer's step, moves the averages toward the weights:
///
///     a = a + (1 - decay) (w - a)
///
/// The averages begin as the weights, and are of their dtype and cut like them, so nothing is
/// communicated. Make it after fully_shard, and after the weights have their initial values.
///
///     optim::WeightAverage average(model.named_parameters(), 0.999);
///     optimizer.step(), average.update();    // each step
///     average.swap(), evaluate(model), average.swap();
class WeightAverage {
 public:
  /// ValueError unless 0 <= decay < 1; Error for a tensor that fully_shard has replaced by a shard,
  /// and while another average is in the weights' place; otherwise as Optimizer refuses parameters.
  WeightAverage(NamedTensors parameters, double decay);
  WeightAverage(const WeightAverage&) = delete;
  WeightAverage& operator=(const WeightAverage&) = delete;
  /// What has been swapped stays so; optimizers then take the averages for the weights.
  ~WeightAverage();

  /// Error between swap() and the swap() that puts the weights back, of this average or another one
  /// of these parameters, as for state_dict(), load_state_dict(), another average's swap() and a
  /// step() of an optimizer. Error if fully_shard has
  /// replaced a parameter, DtypeError if Module::to has converted one, here and in swap(); then
  /// nothing has changed.
  void update();
  /// Exchanges the values of the weights and of the averages.
  void swap();

  /// The averages, each named after its parameter with `.ema`. A checkpoint saves these tensors and
  /// fills them again. Save none between swap() and swap(), also not of tensors that were named
  /// before: the module's and these have changed places.
  NamedTensors state_dict() const;
  /// Copies the values into the tensors of state_dict(), or nothing, with the errors of
  /// Optimizer::load_state_dict().
  void load_state_dict(const NamedTensors& state);

 private:
  void check_in_place(std::string_view call) const;
  void check_parameters_unchanged() const;
  void mark_swapped(bool swapped);

  NamedTensors parameters_;
  TensorList averages_;
  double decay_;
  bool swapped_ = false;
};

}  // namespace moegrad::optim
