// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_writer.h"

#include <array>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/shard_runs.h"
#include "framework/distributed/slow_storage.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_manifest.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/safetensors_writer.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/runtime/exception_message.h"
#include "framework/runtime/log.h"
#include "framework/runtime/utf8.h"
#include "framework/runtime/work_time.h"
#include "framework/tensor/box.h"

namespace moegrad {
namespace {

namespace fs = std::filesystem;

int rank_in(const ProcessGroup* group) { return group == nullptr ? 0 : group->rank(); }

// Each step ends with an exchange between the ranks, so that all of them know whether it failed on
// any rank.
class Agreement {
 public:
  Agreement(std::int64_t step, const std::shared_ptr<ProcessGroup>& group)
      : step_(step), group_(group) {}

  /// Runs `body` and returns what it returns on each rank; throws on all if it throws on one.
  template <class Body>
  std::vector<std::string> run(const Body& body) const {
    std::string own;
    try {
      const SlowStorage storage(group_, "checkpoint: saving step " + std::to_string(step_));
      own = kGood + body();
    } catch (const CollectiveError&) {
      throw;  // the others see it, too
    } catch (...) {
      own = message_of_exception();
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
  static constexpr char kGood = '\n';  // no message begins with it

  std::int64_t step_;
  const std::shared_ptr<ProcessGroup>& group_;
};

std::string file_name(int rank) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d.safetensors", rank);
  return name.data();
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
    const CheckpointTensor described = {.dtype = tensor.dtype(), .shape = global_shape(tensor)};
    const bool added = part.manifest.tensors.try_emplace(name, described).second;
    check<ValueError>(added, "checkpoint: ", in_quotes(name), " is given twice");
    const Shape expected = shard_box(tensor).shape;
    check<ShapeError>(tensor.shape() == expected, "checkpoint: ", in_quotes(name), " must be ",
                      expected, ", got ", tensor.shape());
    if (writes_tensor(tensor, group) && tensor.numel() > 0) {
      part.pieces.push_back({name, tensor.detach(), shard_box(tensor).begin});
    }
  }
  return part;
}

// A part of a tensor that other ranks hold, too.
struct SharedPart {
  std::string part;  // the name's checksum (a long name is cut short), name and position
  std::uint32_t checksum = 0;
};

bool is_shared(const Tensor& tensor, const ProcessGroup* group) {
  const auto& spec = tensor.shard_spec();
  return spec ? has_replicas(*spec) : group != nullptr && group->size() > 1;
}

std::vector<SharedPart> shared_parts(const CheckpointState& state, const ProcessGroup* group) {
  const auto checksums = shared_checksums(state, group);
  std::vector<SharedPart> parts;
  for (const auto& [name, tensor] : state.tensors) {
    if (!is_shared(tensor, group)) continue;
    const auto& spec = tensor.shard_spec();
    const auto name_checksum = crc32c(std::as_bytes(std::span(name)));
    parts.push_back({std::to_string(name_checksum) + " " + in_quotes(name), checksums.at(name)});
    if (!spec) continue;
    parts.back().part += " " + part_text(*spec);
  }
  return parts;
}

// One line per part, then an empty line.
std::string to_text(const std::vector<SharedPart>& parts) {
  std::string text;
  for (const auto& [part, checksum] : parts) text += std::to_string(checksum) + " " + part + "\n";
  return text + "\n";
}

// Takes these lines from the texts of all ranks and compares them. All ranks see the same texts.
void check_same_values(std::int64_t step, std::vector<std::string>& texts) {
  struct First {
    std::string checksum;
    std::size_t rank = 0;
  };
  std::map<std::string, First> firsts;  // by part
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    auto& text = texts[rank];
    while (!text.starts_with('\n')) {
      const auto space = text.find(' '), end = text.find('\n');
      const auto checksum = text.substr(0, space);
      const auto part = text.substr(space + 1, end - space - 1);
      const auto& first = firsts.try_emplace(part, First{checksum, rank}).first->second;
      check(first.checksum == checksum, "checkpoint: saving step ", step, " failed on rank ", rank,
            ": ", part.substr(part.find(' ') + 1), " must have the same values as on rank ",
            first.rank, ", got others; a shard needs its ShardSpec");
      text.erase(0, end + 1);
    }
    text.erase(0, 1);
  }
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
    std::map<std::string, std::string> begins;
    for (const auto& [name, tensor, begin] : part_.pieces) begins[name] = begin_in_file(begin);
    SafetensorsWriter file(path, std::move(entries), begins);
    for (const auto& [name, tensor, begin] : part_.pieces) {
      file.write(name, 0, tensor.bytes());
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

void warn(const CheckpointOptions& options, const std::string& text) {
  if (options.warn) return options.warn(text);
  log(LogLevel::kWarning, text);
}

/// Whether `body` threw nothing.
template <class Body>
bool warn_of_failure(const CheckpointOptions& options, const std::string& what, const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {  // of the file system, too
    warn(options, "checkpoint: " + what + ": " + error.what());
    return false;
  }
  return true;
}

bool opens(const fs::path& folder) {
  try {
    const CheckpointReader reader(folder);
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace

bool writes_tensor(const Tensor& tensor, const ProcessGroup* group) {
  const auto& spec = tensor.shard_spec();
  if (!spec) return rank_in(group) == 0;
  return is_first_replica(*spec);
}

std::map<std::string, std::uint32_t> shared_checksums(const CheckpointState& state,
                                                      const ProcessGroup* group) {
  auto checksums = state.checksums;
  for (const auto& [name, tensor] : state.tensors) {
    // Writing refuses tensors with gaps.
    if (is_shared(tensor, group) && tensor.is_contiguous() && !checksums.contains(name)) {
      checksums.emplace(name, crc32c(tensor.bytes()));
    }
  }
  return checksums;
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
  // Must come before anything that is undone below: otherwise another folder would be changed.
  on_first([&] {
    if (options.lock != nullptr) options.lock->check_held();
  });
  try {
    on_first([&] { commit.begin(); });
    observe(CheckpointPoint::kFolderMade);
    auto parts = agreement.run([&] {
      const auto part = own_part(step, state, group.get());
      // Does not include what only rank 0 does: rank 0 would always be the slowest.
      const WorkGuard work(WorkClass::kCheckpoint);
      auto written = PartWriter(part, options).write(commit.temporary(), rank);
      observe(CheckpointPoint::kFileWritten);
      return to_text(shared_parts(state, group.get())) + written;
    });
    check_same_values(step, parts);
    observe(CheckpointPoint::kFilesAgreed);
    on_first([&] {
      const auto manifest = merge_checkpoint_manifests(parts, "checkpoint");
      write_file_atomically(commit.temporary() / kManifestFile, to_json(manifest));
      // The files of a rank that sees another folder are not in this one. It could write them if a
      // killed run has left a folder of this name there: only what rank 0 sees has been removed.
      const CheckpointReader complete(commit.temporary());
      observe(CheckpointPoint::kManifestWritten);
      auto unable = commit.flush_folder();
      observe(CheckpointPoint::kFolderFlushed);
      commit.rename_folder();
      observe(CheckpointPoint::kFolderRenamed);
      if (const auto reason = commit.flush_root()) unable = reason;
      if (unable) {
        warn(options, "checkpoint: folders in " + root.string() + " cannot be flushed: " +
                          unable.message() + "; a power failure may lose the newest checkpoints");
      }
      observe(CheckpointPoint::kRootFlushed);
      // The checkpoint is saved. The rest is for convenience.
      warn_of_failure(options, "latest is not moved", [&] { commit.move_latest(); });
      observe(CheckpointPoint::kLatestMoved);
      if (options.keep > 0) {
        warn_of_failure(options, "older checkpoints stay", [&] {
          commit.remove_older(options.keep, opens, [&](const fs::path& folder) {
            return warn_of_failure(options, "a damaged checkpoint stays",
                                   [&] { CheckpointReader(folder).verify(); });
          });
        });
      }
      observe(CheckpointPoint::kOlderRemoved);
    });
    observe(CheckpointPoint::kSaved);
  } catch (...) {
    if (rank == 0) commit.abandon();
    throw;
  }
}

}  // namespace moegrad
