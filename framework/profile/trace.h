// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <vector>

#include "framework/runtime/span.h"

namespace moegrad {

/// Writes the spans of all ranks, ranks[r] being rank r's, as JSON that Perfetto
/// (https://ui.perfetto.dev) and chrome://tracing open: a process per rank, a thread per lane,
/// microseconds since the first span. Phases and collectives show their CPU time (Span::busy) in
/// microseconds as cpu_us; collectives also show their bytes, group and sequence number.
/// Collectives of different groups may overlap on one lane; they get separate threads, such as
/// "gather 2".
///
/// Format: Trace Event Format, complete ("X") and metadata ("M") events.
void write_trace(std::ostream& out, const std::vector<std::vector<Span>>& ranks);

}  // namespace moegrad
