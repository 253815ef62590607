// SPDX-License-Identifier: Apache-2.0
#include "optim/param_group.h"

#include <cmath>
#include <tuple>
#include <type_traits>

#include "framework/runtime/error.h"

namespace moegrad::optim {
namespace {

template <class T>
struct Setting {
  std::string_view name;
  std::optional<T> ParamGroup::*member;
  bool (*allowed)(T);
  std::string_view range;
};

bool any(double /*value*/) { return true; }
bool any(bool /*value*/) { return true; }
bool any(MuonAdjust /*value*/) { return true; }
bool in_unit_range(double value) { return 0.0 <= value && value < 1.0; }
bool not_negative(double value) { return std::isfinite(value) && value >= 0.0; }
bool not_positive(double value) { return std::isfinite(value) && value <= 0.0; }
bool at_least_one(double value) { return value >= 1.0; }

constexpr Setting<double> in_unit(std::string_view name,
                                  std::optional<double> ParamGroup::*member) {
  return {name, member, in_unit_range, "in [0, 1)"};
}
constexpr Setting<double> from_zero(std::string_view name,
                                    std::optional<double> ParamGroup::*member) {
  return {name, member, not_negative, "finite and >= 0"};
}
constexpr Setting<double> number(std::string_view name, std::optional<double> ParamGroup::*member) {
  return {name, member, any, "a number"};
}
constexpr Setting<bool> flag(std::string_view name, std::optional<bool> ParamGroup::*member) {
  return {name, member, any, "true or false"};
}

constexpr std::tuple kSettings = {
    number("lr", &ParamGroup::lr),
    number("weight_decay", &ParamGroup::weight_decay),
    in_unit("beta1", &ParamGroup::beta1),
    in_unit("beta2", &ParamGroup::beta2),
    from_zero("eps", &ParamGroup::eps),
    flag("amsgrad", &ParamGroup::amsgrad),
    from_zero("momentum", &ParamGroup::momentum),
    flag("nesterov", &ParamGroup::nesterov),
    in_unit("alpha", &ParamGroup::alpha),
    flag("centered", &ParamGroup::centered),
    from_zero("lr_decay", &ParamGroup::lr_decay),
    from_zero("initial_accumulator_value", &ParamGroup::initial_accumulator_value),
    Setting<double>{"beta2_decay", &ParamGroup::beta2_decay, not_positive, "finite and <= 0"},
    from_zero("min_rms", &ParamGroup::min_rms),
    Setting<double>{"clip_threshold", &ParamGroup::clip_threshold, at_least_one, ">= 1"},
    Setting<MuonAdjust>{"adjust", &ParamGroup::adjust, any, "one of MuonAdjust"},
};

}  // namespace

std::vector<ParamGroup> with_defaults(std::string_view optimizer, std::vector<ParamGroup> groups,
                                      const ParamGroup& defaults) {
  const auto fill = [&](ParamGroup& group, const auto& setting) {
    auto& value = group.*setting.member;
    const auto& standard = defaults.*setting.member;
    check<ValueError>(standard.has_value() || !value.has_value(), optimizer,
                      ": a group must give settings of ", optimizer, " alone, got ", setting.name);
    if (!standard) return;
    if (!value) value = standard;
    using Value = std::remove_cvref_t<decltype(*value)>;
    if constexpr (!std::is_enum_v<Value>) {
      check<ValueError>(setting.allowed(*value), optimizer, ": ", setting.name, " must be ",
                        setting.range, ", got ", *value);
    }
  };
  for (auto& group : groups) {
    std::apply([&](const auto&... setting) { (fill(group, setting), ...); }, kSettings);
  }
  return groups;
}

}  // namespace moegrad::optim
