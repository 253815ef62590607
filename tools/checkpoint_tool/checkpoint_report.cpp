// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint_tool/checkpoint_report.h"

#include <cmath>
#include <cstring>
#include <iomanip>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/runtime/error.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "models/causal_lm/config_json.h"
#include "models/causal_lm/save_pretrained.h"
#include "train/run_identity.h"
#include "train/train_checkpoints.h"

namespace moegrad::tools {

using namespace training;

namespace {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) { return fs::exists(path / kManifestFile); }

std::vector<fs::path> checkpoints_of(const fs::path& path) {
  if (is_checkpoint(path)) return {path};
  std::vector<fs::path> paths;
  for (const auto& found : list_checkpoints(path)) paths.push_back(found.path);
  check(!paths.empty(), path.string(), ": must be a checkpoint or hold some, got none");
  return paths;
}

double megabytes(const CheckpointManifest& manifest) {
  double bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += static_cast<double>(file.bytes);
  return bytes / 1e6;
}

Tensor read_whole(CheckpointReader& reader, const std::string& name) {
  const auto& tensor = reader.manifest().tensors.at(name);
  const Tensor whole = Tensor::empty(tensor.shape, tensor.dtype);
  reader.read(name, whole);
  return whole;
}

struct Difference {
  std::int64_t elements = 0;  // whose bits differ
  std::int64_t at = 0;        // the largest of them, row-major
  double largest = -1;        // NaN counts as the largest of all
  double a = 0, b = 0;
};

Difference difference_of(const Tensor& a, const Tensor& b) {
  const Tensor wide_a = to_dtype(a, Dtype::kFloat64), wide_b = to_dtype(b, Dtype::kFloat64);
  const auto x = wide_a.data<double>(), y = wide_b.data<double>();
  const auto size = static_cast<std::size_t>(size_of(a.dtype()));
  const auto* bits_a = a.bytes().data();
  const auto* bits_b = b.bytes().data();
  Difference found;
  for (std::size_t i = 0; i < x.size(); ++i, bits_a += size, bits_b += size) {
    if (std::memcmp(bits_a, bits_b, size) == 0) continue;
    ++found.elements;
    const double difference = std::abs(x[i] - y[i]);
    if (difference <= found.largest) continue;
    found.largest = std::isnan(difference) ? HUGE_VAL : difference;
    found.at = static_cast<std::int64_t>(i);
    found.a = x[i];
    found.b = y[i];
  }
  return found;
}

bool print_difference(const std::string& name, const Tensor& a, const Tensor& b,
                      std::ostream& out) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) {
    out << name << ": " << a.dtype() << ' ' << a.shape() << " and " << b.dtype() << ' ' << b.shape()
        << '\n';
    return true;
  }
  const auto found = difference_of(a, b);
  if (found.elements == 0) return false;
  out << name << ": " << found.elements << " of " << a.numel() << " elements, largest difference "
      << found.largest << " at " << found.at << ": " << std::setprecision(9) << found.a << " and "
      << found.b << std::setprecision(6) << '\n';
  return true;
}

std::set<std::string> parameters_of(const CheckpointReader& reader) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (!name.starts_with(kOptimizerPrefix)) names.insert(name);
  }
  return names;
}

}  // namespace

bool list_run(const fs::path& root, std::ostream& out) {
  bool good = true;
  out << "      step  ranks        tokens  tensors        MB\n" << std::fixed;
  for (const auto& path : checkpoints_of(root)) {
    try {
      const CheckpointReader reader(path);
      const auto& manifest = reader.manifest();
      const auto tokens = manifest.values.find("tokens");
      out << std::setw(10) << manifest.step << std::setw(7) << manifest.world_size << std::setw(14)
          << (tokens == manifest.values.end() ? "-" : tokens->second) << std::setw(9)
          << manifest.tensors.size() << std::setw(10) << std::setprecision(1) << megabytes(manifest)
          << '\n';
    } catch (const Error& error) {
      if (!fs::exists(path)) continue;  // a run has just removed it
      out << error.what() << '\n';
      good = false;
    }
  }
  return good;
}

bool verify_checkpoints(const fs::path& path, std::ostream& out) {
  bool good = true;
  for (const auto& folder : checkpoints_of(path)) {
    try {
      const CheckpointReader reader(folder);
      reader.verify();
      out << folder.string() << ": sound, " << reader.manifest().files.size() << " files\n";
    } catch (const Error& error) {
      if (!fs::exists(folder)) continue;  // a run has just removed it
      out << error.what() << '\n';
      good = false;
    }
  }
  return good;
}

bool diff_checkpoints(const fs::path& a, const fs::path& b, std::ostream& out) {
  CheckpointReader first(checkpoints_of(a)[0]), second(checkpoints_of(b)[0]);
  const auto names = parameters_of(first), others = parameters_of(second);
  std::int64_t different = 0, common = 0;
  for (const auto& name : names) {
    if (!others.contains(name)) {
      out << name << ": only in " << first.folder().string() << '\n';
      ++different;
      continue;
    }
    ++common;
    if (print_difference(name, read_whole(first, name), read_whole(second, name), out)) ++different;
  }
  for (const auto& name : others) {
    if (names.contains(name)) continue;
    out << name << ": only in " << second.folder().string() << '\n';
    ++different;
  }
  out << common << " parameters compared, " << different << " differ\n";
  return different == 0;
}

void export_checkpoint(const fs::path& path, const fs::path& folder, std::ostream& out) {
  CheckpointReader reader(checkpoints_of(path)[0]);
  reader.verify();
  const auto& values = reader.manifest().values;
  check(values.contains("config"), "checkpoint: ", reader.folder().string(),
        " must have the model's configuration, got none");
  const auto config = models::parse_model_config(values.at("config"));
  std::optional<models::CausalLM> model;
  {
    const MetaGuard no_bytes;
    model.emplace(config);
  }
  model->to_empty();
  for (const auto& [name, tensor] : model->state_dict()) reader.read(name, tensor);
  models::save_pretrained(*model, folder);
  out << "step " << reader.manifest().step << " written to " << folder.string() << '\n';
  const auto weights = values.find(kInitialWeights);
  if (weights == values.end() || weights->second == kRandomWeights) return;
  out << "not written: generation_config.json and the tokenizer; copy them from the model that the "
         "run began from\n";
}

}  // namespace moegrad::tools
