// SPDX-License-Identifier: Apache-2.0
#include "train/logs/tensorboard_log.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <vector>

#include "framework/runtime/error.h"

namespace moegrad::training {
namespace {

double gibibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

namespace fs = std::filesystem;

// ValueError if another program writes one of them.
std::vector<fs::path> earlier_files(const fs::path& folder) {
  std::vector<fs::path> earlier;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder, absent)) {
    const auto name = entry.path().filename().string();
    if (!is_event_file(name) || !entry.is_regular_file()) continue;
    check<ValueError>(!is_written(entry.path()), "--tensorboard: ", folder.string(),
                      " must be of one run at a time, got another that writes ", name);
    earlier.push_back(entry.path());
  }
  return earlier;
}

void set_aside(const std::vector<fs::path>& earlier, const fs::path& folder) {
  if (earlier.empty()) return;
  int number = 1;
  while (fs::exists(fs::symlink_status(folder / std::to_string(number)))) ++number;
  const auto kept = folder / std::to_string(number);
  std::error_code failure;
  fs::create_directory(kept, failure);
  for (const auto& path : earlier) {
    if (!failure) fs::rename(path, kept / path.filename(), failure);
  }
  check(!failure, "--tensorboard: must keep the earlier event files of ", folder.string(), " in ",
        kept.string(), ", got ", failure.message());
  std::cout << "--tensorboard: the earlier event files of " << folder.string() << " are kept in "
            << kept.string() << std::endl;
}

}  // namespace

TensorboardLog::TensorboardLog(const std::string& folder, std::int64_t first_step) {
  if (folder.empty()) return;
  const auto earlier = earlier_files(folder);
  if (first_step == 0) set_aside(earlier, folder);
  file_.emplace(folder);
  if (first_step > 0) {
    attempt([&](EventFileWriter& file) { file.start_session(first_step); });
  }
}

void TensorboardLog::attempt(const std::function<void(EventFileWriter&)>& write) {
  if (!file_) return;
  try {
    write(*file_);
  } catch (const Error& error) {
    lost_.record(error.what());
  }
}

void TensorboardLog::write(const StepReport& report) {
  attempt([&](EventFileWriter& file) {
    const auto add = [&](const std::string& tag, double value) {
      file.add_scalar(tag, value, report.step);
    };
    add("loss_metrics/global_avg_loss", report.result.ce);
    add("loss_metrics/objective", report.result.loss);
    add("grad_norm", report.result.grad_norm);
    add("lr", report.lr);
    add("throughput(tps)", report.tgs());
    add("time_metrics/end_to_end(s)", report.seconds);
    add("time_metrics/data_loading(s)", report.data_seconds);
    add("time_metrics/data_loading(%)", 100 * report.data_seconds / report.seconds);
    if (const auto mfu = report.mfu()) add("mfu(%)", 100 * *mfu);
    add("skipped_steps", static_cast<double>(report.skipped_steps));
    if (const auto worst = worst_load(report.result)) {
      add("routing/worst_load", *worst);
      add("routing/entropy", report.result.router_entropy);
    }
    if (const auto& exchange = report.exchange) {
      add("expert_parallel/rows_sent", static_cast<double>(exchange->rows_sent));
      add("expert_parallel/rows_received", static_cast<double>(exchange->rows_received));
      add("expert_parallel/bytes_sent", static_cast<double>(exchange->bytes_sent));
      add("expert_parallel/bytes_received", static_cast<double>(exchange->bytes_received));
      add("expert_parallel/waiting(%)", 100 * exchange->wait_seconds / report.seconds);
      const auto loads = rank_load(report.result, report.expert_parallel);
      add("expert_parallel/worst_rank_load", *std::ranges::max_element(loads));
    }
    if (const auto& swap = report.swap) {
      add("swap/bytes_out", static_cast<double>(swap->bytes_out));
      add("swap/bytes_in", static_cast<double>(swap->bytes_in));
      add("swap/waiting(%)", 100 * swap->wait_seconds / report.seconds);
    }
    for (const auto& each : report.axes) {
      const auto folder = "axes/" + each.axis;
      add(folder + "/bytes_sent", static_cast<double>(each.bytes_sent));
      add(folder + "/bytes_received", static_cast<double>(each.bytes_received));
      add(folder + "/waiting(%)", 100 * each.wait_seconds / report.seconds);
    }
    add("memory/max_active(GiB)", gibibytes(report.peak_total));
    for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
      const std::string name(to_string(static_cast<MemoryTag>(tag)));
      add("memory/max_" + name + "(GiB)", gibibytes(report.peak_bytes[tag]));
    }
  });
}

void TensorboardLog::write_expert_loads(const StepReport& report) {
  attempt([&](EventFileWriter& file) {
    const auto& layers = report.result.tokens_per_expert;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      file.add_histogram("tokens_per_expert/mixture_layer_" + std::to_string(layer), layers[layer],
                         report.step);
    }
  });
}

void TensorboardLog::write_validation(std::int64_t step, double loss) {
  attempt([&](EventFileWriter& file) { file.add_scalar("validation_metrics/loss", loss, step); });
}

}  // namespace moegrad::training
