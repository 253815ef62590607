// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_files.h"

namespace moegrad::tools {

/// A batch [B][S] as B sequences. Without `positions` they count from 0. ValueError, which begins
/// with `where`, for rows of different lengths, tokens outside the vocabulary, and a batch without
/// any target.
GoldenRow golden_batch(const models::CausalLMConfig& config, const std::string& where,
                       const Ids& ids, const Ids& labels, const Ids* positions = nullptr);

struct PackedRow {
  GoldenRow row;
  std::vector<GoldenRow> alone;  // each sequence
};

/// The row that input.json calls packed. ValueError as for golden_batch().
PackedRow golden_packed_row(const models::CausalLMConfig& config, const std::string& where,
                            const JsonNode& packed);

}  // namespace moegrad::tools
