// SPDX-License-Identifier: Apache-2.0
#include "examples/report/report_page.h"

#include <gmock/gmock.h>

namespace moegrad::examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunRecord short_run() {
  RunRecord run = {.path = "run.jsonl"};
  run.steps = 1;
  run.ce.add(0, 5.5);
  run.grad_norm.add(0, 1);
  run.lr.add(0, 0.1);
  run.tokens_per_second.add(0, 64);
  run.tokens = 1234567;
  run.total_seconds = 2;
  return run;
}

TEST(ReportPage, HasAllSectionsAndSaysWhatIsNotThere) {
  const auto page = report_page(short_run());
  for (const std::string id : {"loss", "grad-norm", "lr", "throughput", "data-loading", "experts",
                               "memory", "communication", "configuration"}) {
    EXPECT_THAT(page, HasSubstr("<section id=\"" + id + "\">"));
  }
  EXPECT_THAT(page, AllOf(HasSubstr("The file has no tokens per expert."),
                          HasSubstr("The file has no memory use."),
                          HasSubstr("Not profiled: train with --profile-steps a:b"),
                          HasSubstr("The file has no configuration."), Not(HasSubstr("Resumed"))));
  EXPECT_THAT(page, HasSubstr("<dd>1\u202F234\u202F567</dd>"));
}

TEST(ReportPage, ShowsMemoryAndCommunication) {
  auto run = short_run();
  run.memory = PeakMemory{.tags = {1024, 0, 0, 0, 0, 0}, .total = 2048};
  run.communication =
      CommunicationRecord{.steps = 3,
                          .compute_seconds = 0.5,
                          .gather = {.seconds = 0.25, .exposed_seconds = 0.0625, .bytes = 512}};
  const auto page = report_page(run);
  EXPECT_THAT(page, AllOf(HasSubstr(">parameters</text>"), HasSubstr(">1.00 KiB</text>"),
                          HasSubstr(">2.00 KiB</text>")));
  EXPECT_THAT(page, HasSubstr("over 3 profiled steps, beside 500.000 ms of compute"));
  EXPECT_THAT(page, HasSubstr(">250.000 ms, 75.0 % hidden, 512 B received</text>"));
  EXPECT_THAT(page, HasSubstr(">0.000 ms, - hidden, 0 B received</text>"));
}

TEST(ReportPage, EscapesEveryTextOfTheFile) {
  auto run = short_run();
  run.path = "<b>&\"'.jsonl";
  run.configuration = "</pre><script>alert(1)</script>\x01";
  const auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<p class=\"path\">&lt;b&gt;&amp;&quot;&#39;.jsonl</p>"));
  EXPECT_THAT(page,
              HasSubstr("<pre>&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;\uFFFD</pre>"));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
}

TEST(ReportPage, SaysWhatIsMissingAndWhereTheRunWasResumed) {
  auto run = short_run();
  run.steps = 3;
  run.ce.add(2, NAN);
  run.starts = {0, 1, 2};
  run.bytes_left_out = 9;
  const auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<p>Values of the training loss that are not finite: 1.</p>"));
  EXPECT_THAT(page, HasSubstr("<p>Resumed at step 1, 2.</p>"));
  EXPECT_THAT(page,
              HasSubstr("<p>The last line of the file is cut short: 9 bytes are left out.</p>"));
  EXPECT_THAT(page, HasSubstr("<dt>last training loss</dt><dd>-</dd>"));
}

TEST(ReportPage, IsOfBoundedSizeHoweverLongAndLargeTheRun) {
  RunRecord run = {.path = "run.jsonl"};
  constexpr std::int64_t kSteps = 100'000;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto value = static_cast<double>(step % 97) + 0.123456;
    for (auto* curve : {&run.ce, &run.validation, &run.grad_norm, &run.lr, &run.tokens_per_second,
                        &run.data_percent}) {
      curve->add(step, value);
    }
  }
  run.steps = kSteps;
  run.last_step = kSteps - 1;
  const ExpertCounts counts(48, std::vector<double>(128, 1));
  run.loads.emplace(counts);
  for (std::int64_t step = 0; step < kSteps; step += 100) run.loads->add(step, counts);
  EXPECT_LT(report_page(run).size(), 1'000'000U);
}

}  // namespace
}  // namespace moegrad::examples
