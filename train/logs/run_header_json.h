// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "framework/io/json_node.h"
#include "train/logs/run_header.h"

namespace moegrad::training {

nlohmann::json to_json(const RunHeader& header);

/// The inverse of to_json(). Any part may be missing. ValueError if a part has the wrong type.
RunHeader run_header_of(const JsonNode& object);

}  // namespace moegrad::training
