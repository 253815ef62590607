// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/check_golden/golden_case.h"
#include "tools/check_golden/golden_files.h"

namespace moegrad::tools {

/// [row][position]
using Ids = std::vector<std::vector<std::int64_t>>;

/// A batch [B][S] as B sequences; without `positions` they count from 0. ValueError, which begins
/// with `where`, for rows that do not fit together, tokens outside the vocabulary, and a batch that
/// scores nothing.
GoldenRow golden_batch(const models::Qwen3MoeConfig& config, const std::string& where,
                       const Ids& ids, const Ids& labels, const Ids* positions = nullptr);

struct PackedRow {
  GoldenRow row;
  std::vector<GoldenRow> alone;  // each sequence
};

/// The row that input.json calls packed. ValueError likewise.
PackedRow golden_packed_row(const models::Qwen3MoeConfig& config, const std::string& where,
                            const GoldenJson& packed);

}  // namespace moegrad::tools
