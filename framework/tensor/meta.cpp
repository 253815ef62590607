// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/meta.h"

namespace moegrad {
namespace {

thread_local bool meta_mode = false;

}  // namespace

bool meta_enabled() { return meta_mode; }
MetaGuard::MetaGuard(bool enabled) : previous_(meta_mode) { meta_mode = enabled; }
MetaGuard::~MetaGuard() { meta_mode = previous_; }

}  // namespace moegrad
