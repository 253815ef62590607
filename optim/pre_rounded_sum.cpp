// SPDX-License-Identifier: Apache-2.0
#include "optim/pre_rounded_sum.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "framework/runtime/parallel_for.h"
#include "optim/grain.h"

namespace moegrad::optim {
namespace {

/// What a, b and c are multiples of. Adding and subtracting a rounder rounds to such a multiple.
constexpr std::array kQuanta = {0x1p-22, 0x1p-44, 0x1p-66};
constexpr std::array kRounders = {0x1.8p30, 0x1.8p8, 0x1.8p-14};

/// g / 2^exponent in two factors, because 2^-exponent alone may overflow.
struct Scale {
  explicit Scale(int exponent)
      : first(std::ldexp(1.0, -(exponent / 2))),
        second(std::ldexp(1.0, -(exponent - exponent / 2))) {}
  double first, second;
};

template <class T>
Extreme extreme_of_values(std::span<const T> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<Extreme> pieces(static_cast<std::size_t>((n + kGrain - 1) / kGrain));
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    T magnitude = 0;
    bool nan = false;
    for (auto i = begin; i < end; ++i) {
      const T value = std::abs(values[static_cast<std::size_t>(i)]);
      magnitude = value > magnitude ? value : magnitude;
      nan |= value != value;
    }
    pieces[static_cast<std::size_t>(begin / kGrain)] = {static_cast<double>(magnitude),
                                                        nan ? 1.0 : 0.0};
  });
  Extreme total;
  for (const auto& piece : pieces) total = max(total, piece);
  return total;
}

template <int kPower, class T>
Bins bins_of_values(std::span<const T> values, const Scale& scale) {
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<Bins> pieces(static_cast<std::size_t>((n + kGrain - 1) / kGrain));
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kLanes = 8;
    std::array<std::array<double, kLanes>, kRounders.size()> lanes{};
    const auto add = [&](const T* from, std::int64_t count) {
      for (std::int64_t lane = 0; lane < count; ++lane) {
        const double scaled = static_cast<double>(from[lane]) * scale.first * scale.second;
        double remainder = kPower == 1 ? std::abs(scaled) : scaled * scaled;
        for (std::size_t bin = 0; bin < lanes.size(); ++bin) {
          const double rounded = (remainder + kRounders[bin]) - kRounders[bin];
          lanes[bin][static_cast<std::size_t>(lane)] += rounded;
          remainder -= rounded;
        }
      }
    };
    auto i = begin;
    for (; i + kLanes <= end; i += kLanes) add(values.data() + i, kLanes);
    add(values.data() + i, end - i);
    auto& piece = pieces[static_cast<std::size_t>(begin / kGrain)];
    for (std::size_t bin = 0; bin < piece.size(); ++bin) {
      double sum = 0.0;
      for (const double lane : lanes[bin]) sum += lane;
      piece[bin] = static_cast<std::int64_t>(sum / kQuanta[bin]);
    }
  });
  Bins total{};
  for (const auto& piece : pieces) {
    for (std::size_t bin = 0; bin < total.size(); ++bin) total[bin] += piece[bin];
  }
  return total;
}

}  // namespace

PreRoundedSum::PreRoundedSum(int p, double magnitude) : p_(p) {
  std::frexp(magnitude, &exponent_);  // magnitude < 2^exponent
}

Bins PreRoundedSum::bins_of(const Tensor& grad) const {
  const Scale scale(exponent_);
  return dispatch_floating(grad.dtype(), [&]<class T>() {
    const auto values = grad.data<T>();
    return p_ == 1 ? bins_of_values<1, T>(values, scale) : bins_of_values<2, T>(values, scale);
  });
}

double PreRoundedSum::norm_of(const Bins& total) const {
  const auto bin = [&](std::size_t i) { return static_cast<double>(total[i]) * kQuanta[i]; };
  const double sum = bin(0) + (bin(1) + bin(2));
  return std::ldexp(p_ == 1 ? sum : std::sqrt(sum), exponent_);
}

Extreme extreme_of(const Tensor& grad) {
  return dispatch_floating(grad.dtype(),
                           [&]<class T>() { return extreme_of_values<T>(grad.data<T>()); });
}

Extreme max(const Extreme& a, const Extreme& b) {
  return {std::max(a.magnitude, b.magnitude), std::max(a.nan, b.nan)};
}

}  // namespace moegrad::optim
