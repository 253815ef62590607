// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_writer.h"

#include <array>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "framework/distributed/shard_runs.h"
#include "framework/distributed/text_collectives.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_manifest.h"
#include "framework/io/describe_file.h"
#include "framework/io/safetensors_writer.h"
#include "framework/io/utf8.h"
#include "framework/runtime/error.h"
#include "framework/tensor/box.h"

namespace moegrad {
namespace {

namespace fs = std::filesystem;

int rank_in(const ProcessGroup* group) { return group == nullptr ? 0 : group->rank(); }

// Nothing else on this rank depends on what one step of another rank came to: each step ends with
// the ranks telling each other.
class Agreement {
 public:
  Agreement(std::int64_t step, const std::shared_ptr<ProcessGroup>& group)
      : step_(step), group_(group) {}

  /// Runs `body` and returns what it returns on each rank; throws on all if it throws on one.
  template <class Body>
  std::vector<std::string> run(const Body& body) const {
    std::string own;
    try {
      own = kGood + body();
    } catch (const CollectiveError&) {
      throw;  // the others see it, too
    } catch (const std::exception& error) {
      own = error.what();
    }
    auto texts = all_gather_texts(group_, own, {.label = "checkpoint"});
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      auto& text = texts[rank];
      check(text.starts_with(kGood), "checkpoint: saving step ", step_, " failed on rank ", rank,
            ": ", text);
      text.erase(0, 1);
    }
    return texts;
  }

 private:
  static constexpr char kGood = '\n';  // no message begins so

  std::int64_t step_;
  const std::shared_ptr<ProcessGroup>& group_;
};

std::string file_name(int rank) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d.safetensors", rank);
  return name.data();
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  const auto size = size_of(tensor.dtype());
  return {tensor.storage().data() + tensor.offset() * size,
          static_cast<std::size_t>(tensor.numel() * size)};
}

// What this rank writes.
struct Piece {
  std::string name;
  Tensor tensor;
  Shape begin;
};

struct Part {
  CheckpointManifest manifest = {};  // of all tensors, without pieces or files
  std::vector<Piece> pieces = {};
};

Part own_part(std::int64_t step, const CheckpointState& state, const ProcessGroup* group) {
  Part part;
  part.manifest = {
      .step = step, .world_size = group == nullptr ? 1 : group->size(), .values = state.values};
  for (const auto& [name, tensor] : state.tensors) {
    check<LayoutError>(tensor.layout() == Layout::kND && tensor.is_contiguous(),
                       "checkpoint: ", in_quotes(name), " must be contiguous ND");
    const auto& spec = tensor.shard_spec();
    const Shape& whole = spec ? spec->global_shape : tensor.shape();
    const bool added = part.manifest.tensors.try_emplace(name, tensor.dtype(), whole).second;
    check<ValueError>(added, "checkpoint: ", in_quotes(name), " is given twice");
    Shape begin = whole_box(whole).begin;
    if (spec) {
      check<ShapeError>(tensor.shape() == shard_shape(*spec), "checkpoint: ", in_quotes(name),
                        " must be ", shard_shape(*spec), ", got ", tensor.shape());
      begin[spec->dim] = spec->begin;
    }
    if (writes_tensor(tensor, group) && tensor.numel() > 0) {
      part.pieces.push_back({name, tensor.detach(), begin});
    }
  }
  return part;
}

class PartWriter {
 public:
  PartWriter(const Part& part, const CheckpointOptions& options) : part_(part), options_(options) {}

  /// Writes the file, if there are any pieces, and returns the manifest of them as text.
  std::string write(const fs::path& folder, int rank) const {
    auto manifest = part_.manifest;
    const auto name = file_name(rank);
    if (!part_.pieces.empty()) {
      write_pieces(folder / name);
      manifest.files[name] = describe_file(folder / name);
    }
    for (const auto& [tensor, values, begin] : part_.pieces) {
      manifest.tensors[tensor].pieces.push_back({name, begin, values.shape()});
    }
    return to_json(manifest);
  }

 private:
  void write_pieces(const fs::path& path) const {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor, begin] : part_.pieces) {
      const auto& shape = tensor.shape();
      entries.push_back({.name = name,
                         .shape = SafetensorsShape({shape.begin(), shape.end()}),
                         .dtype = safetensors_dtype(tensor.dtype())});
    }
    SafetensorsWriter file(path, std::move(entries));
    for (const auto& [name, tensor, begin] : part_.pieces) {
      file.write(name, 0, bytes_of(tensor));
      if (&name == &part_.pieces.front().name) observe(CheckpointPoint::kTensorWritten);
    }
    file.finish();
  }

  void observe(CheckpointPoint point) const {
    if (options_.observe) options_.observe(point);
  }

  const Part& part_;
  const CheckpointOptions& options_;
};

}  // namespace

bool writes_tensor(const Tensor& tensor, const ProcessGroup* group) {
  const auto& spec = tensor.shard_spec();
  if (!spec) return rank_in(group) == 0;
  return spec->replicas == nullptr || spec->replicas->rank() == 0;
}

void write_checkpoint(const fs::path& root, std::int64_t step, const CheckpointState& state,
                      const std::shared_ptr<ProcessGroup>& group,
                      const CheckpointOptions& options) {
  const auto observe = [&](CheckpointPoint point) {
    if (options.observe) options.observe(point);
  };
  const int rank = rank_in(group.get());
  const CheckpointCommit commit(root, step);
  const Agreement agreement(step, group);
  const auto on_first = [&](const auto& body) {
    agreement.run([&] {
      if (rank == 0) body();
      return std::string();
    });
  };
  try {
    on_first([&] { commit.begin(); });
    observe(CheckpointPoint::kFolderMade);
    const auto parts = agreement.run([&] {
      const auto part = own_part(step, state, group.get());
      auto written = PartWriter(part, options).write(commit.temporary(), rank);
      observe(CheckpointPoint::kFileWritten);
      return written;
    });
    observe(CheckpointPoint::kFilesAgreed);
    on_first([&] {
      const auto manifest = merge_checkpoint_manifests(parts, "checkpoint");
      write_file_atomically(commit.temporary() / kManifestFile, to_json(manifest));
      observe(CheckpointPoint::kManifestWritten);
      commit.flush_folder();
      observe(CheckpointPoint::kFolderFlushed);
      commit.rename_folder();
      observe(CheckpointPoint::kFolderRenamed);
      commit.flush_root();
      observe(CheckpointPoint::kRootFlushed);
      commit.move_latest();
      observe(CheckpointPoint::kLatestMoved);
      if (options.keep > 0) commit.remove_older(options.keep);
      observe(CheckpointPoint::kOlderRemoved);
    });
    observe(CheckpointPoint::kSaved);
  } catch (...) {
    if (rank == 0) commit.abandon();
    throw;
  }
}

}  // namespace moegrad
