// SPDX-License-Identifier: Apache-2.0
#include "tools/fsdp_timeline/timeline_report.h"

#include <iomanip>
#include <sstream>

namespace moegrad::tools {
namespace {

double percent_of(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

class Lines {
 public:
  Lines() { text_ << std::fixed; }

  std::ostream& line(const std::string& label) {
    text_ << '\n' << std::left << std::setw(18) << label << std::right;
    return text_;
  }
  std::string text() const { return text_.str().substr(1) + '\n'; }

 private:
  std::ostringstream text_;
};

void add_link(Lines& lines, const LinkModel& link) {
  auto& out = lines.line("link");
  if (link.duration(1 << 20).count() == 0) {
    out << "memory of one process: collectives are copies, no time of theirs is modelled";
    return;
  }
  out << "MODELLED: latency " << std::setprecision(1) << seconds(link.latency) * 1e6 << " us, ";
  if (link.bytes_per_second > 0) {
    out << std::setprecision(4) << link.bytes_per_second / 1e9 << " GB/s";
  } else {
    out << "any bandwidth";
  }
}

void add_communication(Lines& lines, const TimelineFigures& figures, bool modelled) {
  const auto line = [&](const std::string& label, double time, double exposed) {
    lines.line(label) << std::setprecision(3) << time * 1e3 << " ms a step, exposed "
                      << std::setprecision(1) << percent_of(exposed, time) << " %"
                      << (modelled ? " (modelled link)" : "");
  };
  line("gather", figures.gather, figures.exposed_gather);
  line("reduce", figures.reduce, figures.exposed_reduce);
  line("other", figures.other, figures.exposed_other);
  line("communication", figures.communication(), figures.exposed());
}

}  // namespace

std::string timeline_summary(const TimelineOptions& options,
                             const std::vector<RankTimeline>& ranks) {
  const auto figures = timeline_figures(ranks);
  Lines lines;
  lines.line("steps") << options.steps << " on " << options.ranks << " ranks, "
                      << options.batch * options.sequence_length << " tokens per rank and step";
  lines.line("prefetch") << (options.prefetch ? "on" : "off");
  add_link(lines, options.link);
  lines.line("step") << std::setprecision(3) << figures.step * 1e3 << " ms (median)";
  lines.line("compute") << std::setprecision(3) << figures.compute * 1e3 << " ms a step";
  add_communication(lines, figures, options.link.duration(1 << 20).count() > 0);
  lines.line("gathered bytes") << std::setprecision(0) << figures.gathered_bytes
                               << " received per rank and step";
  lines.line("reduced bytes") << std::setprecision(0) << figures.reduced_bytes
                              << " received per rank and step";
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    lines.line("peak bytes") << std::setw(10) << figures.peak_bytes[tag] << ' '
                             << to_string(static_cast<MemoryTag>(tag));
  }
  lines.line("peak bytes") << std::setw(10) << figures.peak_total << " at one moment";
  std::int64_t spans = 0;
  for (const auto& rank : ranks) spans += std::ssize(rank.spans);
  lines.line("spans") << spans;
  return lines.text();
}

}  // namespace moegrad::tools
