// SPDX-License-Identifier: Apache-2.0
#include "tools/report/report_page.h"

#include <gmock/gmock.h>

namespace moegrad::tools::report_page_test {
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
  for (const std::string id :
       {"loss", "grad-norm", "lr", "throughput", "data-loading", "mfu", "router-entropy", "experts",
        "memory", "communication", "configuration"}) {
    EXPECT_THAT(page, HasSubstr("<section id=\"" + id + "\">"));
  }
  EXPECT_THAT(page, AllOf(HasSubstr("The file has no tokens per expert."),
                          HasSubstr("The file has no memory use."),
                          HasSubstr("Not profiled: train with --profile-steps a:b"),
                          HasSubstr("The file has no configuration."), Not(HasSubstr("Resumed"))));
  EXPECT_THAT(page, HasSubstr("<dd>1\u202F234\u202F567</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>skipped steps</dt><dd>0</dd>"));
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

TEST(ReportPage, ShowsBytesAndWaitingOfEachAxis) {
  auto run = short_run();
  EXPECT_THAT(report_page(run), Not(HasSubstr("<section id=\"axes\">")));
  run.axes["tp"] = {
      .steps = 2, .seconds = 8, .bytes_sent = 2048, .bytes_received = 8192, .wait_seconds = 1};
  const auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<section id=\"axes\">"));
  EXPECT_THAT(page, HasSubstr(">tp</text>"));
  EXPECT_THAT(page, HasSubstr(">12.5 %, 1.00 KiB sent, 4.00 KiB received</text>"));
}

TEST(ReportPage, EscapesEveryTextOfTheFile) {
  auto run = short_run();
  run.axes["<i>&"] = {.steps = 1, .seconds = 1};
  run.path = "<b>&\"'.jsonl";
  run.configuration = "</pre><script>alert(1)</script>\x01";
  const auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<p class=\"path\">&lt;b&gt;&amp;&quot;&#39;.jsonl</p>"));
  EXPECT_THAT(page,
              HasSubstr("<pre>&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;\uFFFD</pre>"));
  EXPECT_THAT(page, HasSubstr(">&lt;i&gt;&amp;</text>"));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("<i>"))));
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
  EXPECT_THAT(
      page,
      HasSubstr("<dt>last training loss, nats per byte or token (unknown which)</dt><dd>-</dd>"));
}

TEST(ReportPage, SaysUnknownWhereTheFileDoesNotTell) {
  const auto page = report_page(short_run());
  EXPECT_THAT(page, HasSubstr("<title>run.jsonl: training report</title>"));
  EXPECT_THAT(page, HasSubstr("<h1><bdi>run.jsonl</bdi>: training report</h1>"));
  EXPECT_THAT(page, HasSubstr("<dt>started</dt><dd>unknown</dd>\n"
                              "<dt>moegrad version</dt><dd>unknown</dd>\n"
                              "<dt>CPU</dt><dd>unknown</dd>\n"
                              "<dt>command</dt><dd>unknown</dd>\n"));
  EXPECT_THAT(page, HasSubstr(">nats per byte or token (unknown which)</text>"));
  EXPECT_THAT(page, HasSubstr("<dt>clipped steps</dt><dd>unknown</dd>"));
  EXPECT_THAT(page, HasSubstr("<p>Clipping: max_grad_norm is unknown.</p>"));
  EXPECT_THAT(page, Not(HasSubstr("class=\"reference\"")));
}

TEST(ReportPage, SaysWhatWhereAndWhen) {
  auto run = short_run();
  run.path = "folder/run.jsonl";
  EXPECT_THAT(report_page(run), HasSubstr("<h1><bdi>run.jsonl</bdi>: training report</h1>"));
  run.parts = {{.first_step = 0,
                .header = {.title = "small on a<b",
                           .date = "2026-01-31T09:30:00Z",
                           .version = "1.2.3",
                           .cpu = "a CPU & more",
                           .command = {"train", "a b", "<c>"},
                           .unit = "byte",
                           .steps = 1}}};
  const auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<title>small on a&lt;b: training report</title>"));
  EXPECT_THAT(page, HasSubstr("<h1><bdi>small on a&lt;b</bdi>: training report</h1>"));
  EXPECT_THAT(page, HasSubstr("<dt>started</dt><dd>2026-01-31T09:30:00Z</dd>\n"
                              "<dt>moegrad version</dt><dd>1.2.3</dd>\n"
                              "<dt>CPU</dt><dd>a CPU &amp; more</dd>\n"
                              "<dt>command</dt><dd><code><span>train</span> "
                              "<span>&#39;a b&#39;</span> <span>&#39;&lt;c&gt;&#39;</span>"
                              "</code></dd>\n"));
  EXPECT_THAT(page, HasSubstr(">nats per byte</text>"));
  EXPECT_THAT(page, HasSubstr("<dt>last training loss, nats per byte</dt><dd>5.5000</dd>"));
  EXPECT_THAT(page, Not(HasSubstr("Earlier parts")));
  EXPECT_THAT(page, Not(HasSubstr("steps are done")));
}

TEST(ReportPage, ShowsTheLastPartOfAResumedRunFirst) {
  auto run = short_run();
  run.last_step = 4;
  run.parts = {{.first_step = 0, .header = {.cpu = "one"}},
               {.first_step = 3, .header = {.cpu = "two"}},
               {.first_step = 4, .header = {.cpu = "three", .steps = 9}}};
  const auto page = report_page(run);
  EXPECT_LT(page.find("<dd>three</dd>"),
            page.find("<summary>Earlier parts of the run: 2</summary>"));
  EXPECT_LT(page.find("<p>From step 0:</p>"), page.find("<dd>one</dd>"));
  EXPECT_LT(page.find("<dd>one</dd>"), page.find("<p>From step 3:</p>"));
  EXPECT_LT(page.find("<p>From step 3:</p>"), page.find("<dd>two</dd>"));
  EXPECT_THAT(page, HasSubstr("<p>The run ends after step 4: 5 of 9 steps are done.</p>"));
}

TEST(ReportPage, ShowsTheLimitOfClippingAndTheShareOfClippedSteps) {
  auto run = short_run();
  run.parts = {{.first_step = 0, .header = {.max_grad_norm = 0.75}}};
  run.clipping = {.steps = 8, .clipped = 3};
  auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<dt>clipped steps</dt><dd>37.5 %</dd>"));
  EXPECT_THAT(page, HasSubstr("<p>Clipped above 0.75 (max_grad_norm): 3 of 8 steps, 37.5 %.</p>"));
  EXPECT_THAT(page, HasSubstr(">clipped above 0.75</text>"));
  run.parts[0].header.max_grad_norm = 0;
  run.clipping = {};
  page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<dt>clipped steps</dt><dd>off</dd>"));
  EXPECT_THAT(page, HasSubstr("<p>Clipping is off (max_grad_norm 0).</p>"));
}

TEST(ReportPage, ShowsTheMedianOfTheThroughput) {
  auto run = short_run();
  run.throughputs = {10, 64, 12000, 100};
  const auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<dt>tokens per second, median of steps</dt><dd>82</dd>"));
  EXPECT_THAT(page, HasSubstr(">median 82</text>"));
}

TEST(ReportPage, CountsDeadExperts) {
  auto run = short_run();
  run.loads.emplace(ExpertCounts{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}});
  run.loads->add(0, {{1, 0, 0}, {1, 1, 1}, {5, 5, 0}});
  auto page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<dt>dead experts</dt><dd>3 of 9</dd>"));
  EXPECT_THAT(page, HasSubstr("<p>Dead experts, without a token in the last step: 2 of 3 in layer "
                              "0, 1 of 3 in layer 2.</p>"));
  EXPECT_THAT(page, HasSubstr("of the mean, 2 dead</text>"));
  run.loads->add(1, {{0, 1, 1}, {0, 0, 1}, {0, 0, 1}});
  page = report_page(run);
  EXPECT_THAT(page, HasSubstr("<p>Dead experts, without a token in the last 2 steps: none.</p>"));
}

TEST(ReportPage, SaysThatAWideChartScrollsOnANarrowScreen) {
  const auto page = report_page(short_run());
  EXPECT_THAT(page, HasSubstr("<p class=\"hint\">The chart is wider than the screen: scroll it "
                              "sideways \u2192</p>\n<div class=\"wide\">"));
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
}  // namespace moegrad::tools::report_page_test
