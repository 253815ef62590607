// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_reader.h"

#include <algorithm>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "framework/distributed/collectives.h"
#include "framework/distributed/shard_runs.h"
#include "framework/distributed/slow_storage.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/mapped_file.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"
#include "framework/tensor/box.h"

namespace moegrad {
namespace {

namespace fs = std::filesystem;

CheckpointManifest read_manifest(const fs::path& path) {
  const MappedFile file(path, "checkpoint");
  const auto* const text = reinterpret_cast<const char*>(file.bytes().data());
  return parse_checkpoint_manifest({text, file.bytes().size()}, "checkpoint: " + path.string());
}

// The names of the checkpoints, newest first, that all ranks go through: rank 0's, because another
// process may be removing some.
std::string agreed_names(const fs::path& root, const std::shared_ptr<ProcessGroup>& group) {
  std::string own;
  {
    const SlowStorage storage(group, "reading " + root.string());
    for (const auto& found : list_checkpoints(root)) own += found.path.filename().string() + " ";
  }
  const auto names = all_gather_texts(group, own, {.label = "checkpoint"});
  for (std::size_t rank = 1; rank < names.size() && names[0].empty(); ++rank) {
    check(names[rank].empty(), "checkpoint: ", root.string(),
          " must be the same folder on all ranks, got none on rank 0 and ",
          names[rank].substr(0, names[rank].find(' ')), " on rank ", rank);
  }
  return names[0];
}

// Each rank has read the manifest that it sees. The manifest has the checksums of all files.
void check_same_manifest(const CheckpointReader& reader,
                         const std::shared_ptr<ProcessGroup>& group) {
  const auto text = to_json(reader.manifest());
  const auto checksum = std::to_string(crc32c(std::as_bytes(std::span(text))));
  const auto others = ranks_that_differ(all_gather_texts(group, checksum, {.label = "checkpoint"}));
  check(others.empty(), "checkpoint: ", (reader.folder() / kManifestFile).string(),
        " must be the same on all ranks, got another on rank ", others,
        " than on rank 0; all ranks must see one folder");
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(folder), manifest_(read_manifest(folder / kManifestFile)) {
  for (const auto& [name, expected] : manifest_.files) {
    std::error_code failure;
    const auto bytes = fs::file_size(folder_ / name, failure);
    check(!failure, "checkpoint: ", (folder_ / name).string(), ": must be readable, got ",
          failure.message());
    check(bytes == expected.bytes, "checkpoint: ", (folder_ / name).string(), ": must be of ",
          expected.bytes, " bytes, got ", bytes);
  }
  const auto named = step_of_folder(folder);
  check(!named || *named == manifest_.step, "checkpoint: ", folder_.string(), ": must be of step ",
        named.value_or(0), ", as its name says, got ", manifest_.step, " in ", kManifestFile);
}

const SafetensorsFile& CheckpointReader::file(const std::string& name) const {
  auto file = files_.find(name);
  if (file == files_.end()) file = files_.try_emplace(name, folder_ / name).first;
  return file->second;
}

const SafetensorsEntry& CheckpointReader::entry_of(const std::string& tensor,
                                                   const CheckpointPiece& piece) const {
  const auto& holder = file(piece.file);
  const auto& entry = holder.at(tensor);
  const auto dtype = safetensors_dtype(manifest_.tensors.at(tensor).dtype);
  const bool agrees = entry.dtype == dtype &&
                      entry.shape == SafetensorsShape({piece.shape.begin(), piece.shape.end()});
  const auto path = (folder_ / piece.file).string();
  check(agrees, "checkpoint: ", path, ": ", in_quotes(tensor),
        " must be of the shape and dtype of the manifest");
  // Files of an earlier version do not record it.
  const auto recorded = holder.metadata().find(tensor);
  const auto begin = begin_in_file(piece.begin);
  check(recorded == holder.metadata().end() || recorded->second == begin, "checkpoint: ", path,
        ": ", in_quotes(tensor), " must begin at ", begin, " as in the manifest, got ",
        recorded == holder.metadata().end() ? "" : recorded->second);
  return entry;
}

void CheckpointReader::verify(int rank, int ranks) const {
  std::map<std::string, int> readers;  // by file
  for (const auto& [name, expected] : manifest_.files) {
    const int reader = static_cast<int>(readers.size()) % ranks;
    readers[name] = reader;
    if (reader != rank) continue;
    const auto path = folder_ / name;
    const auto found = describe_file(path);
    check(found == expected, "checkpoint: ", path.string(), ": must be of ", expected.bytes,
          " bytes with CRC-32C ", expected.crc32c, ", got ", found.bytes, " with ", found.crc32c);
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const auto& piece : tensor.pieces) {
      if (readers.at(piece.file) == rank) entry_of(name, piece);
    }
  }
}

void CheckpointReader::check_tensor(const std::string& name, const Tensor& tensor) const {
  const auto found = manifest_.tensors.find(name);
  check<ValueError>(found != manifest_.tensors.end(), "checkpoint: ", folder_.string(),
                    " must have ", in_quotes(name), ", got none");
  const auto& expected = found->second;
  const auto& spec = tensor.shard_spec();
  const Shape& shape = global_shape(tensor);
  check<ShapeError>(shape == expected.shape, "checkpoint: ", in_quotes(name), " must be ",
                    expected.shape, " as in ", folder_.string(), ", got ", shape);
  check<DtypeError>(tensor.dtype() == expected.dtype, "checkpoint: ", in_quotes(name), " must be ",
                    expected.dtype, " as in ", folder_.string(), ", got ", tensor.dtype());
  check<LayoutError>(tensor.layout() == Layout::kND && tensor.is_contiguous(),
                     "checkpoint: ", in_quotes(name), " must be contiguous ND");
  check<ShapeError>(!spec || tensor.shape() == spec->box.shape, "checkpoint: ", in_quotes(name),
                    " must be a shard as its spec says, got ", tensor.shape());
}

void CheckpointReader::read(const std::string& name, Tensor tensor) {
  check_tensor(name, tensor);
  const SlowStorage storage("reading " + folder_.string());
  const Box target = shard_box(tensor);
  auto* const to = tensor.mutable_bytes().data();
  for (const auto& piece : manifest_.tensors.at(name).pieces) {
    if (!overlap(piece.box(), target)) continue;
    const auto bytes = file(piece.file).bytes(entry_of(name, piece));
    copy_overlap(piece.box(), bytes.data(), target, to, size_of(tensor.dtype()));
  }
}

void CheckpointReader::read_all(const NamedTensors& tensors) {
  std::map<std::string, Tensor> wanted;
  for (const auto& [name, tensor] : tensors) {
    check<ValueError>(wanted.emplace(name, tensor).second, "checkpoint: ", in_quotes(name),
                      " is asked for twice");
    check_tensor(name, tensor);
  }
  for (const auto& [name, tensor] : manifest_.tensors) {
    check<ValueError>(wanted.contains(name), "checkpoint: ", folder_.string(),
                      " has an unexpected tensor ", in_quotes(name));
  }
  for (const auto& [name, tensor] : wanted) read(name, tensor);
}

std::optional<CheckpointReader> open_newest_checkpoint(
    const fs::path& root, const std::shared_ptr<ProcessGroup>& group,
    const std::function<void(const std::string& reason)>& skipped) {
  const int rank = group == nullptr ? 0 : group->rank();
  const int ranks = group == nullptr ? 1 : group->size();
  std::istringstream list(agreed_names(root, group));
  std::string reasons;
  for (std::string name; list >> name;) {
    std::optional<CheckpointReader> reader;
    std::string failure;
    try {
      const SlowStorage storage(group, "reading " + (root / name).string());
      reader.emplace(root / name);
      reader->verify(rank, ranks);
    } catch (const Error& error) {
      failure = error.what();
    }
    const auto failures = all_gather_texts(group, failure, {.label = "checkpoint"});
    const auto first =
        std::ranges::find_if(failures, [](const auto& text) { return !text.empty(); });
    if (first == failures.end()) {
      check_same_manifest(*reader, group);
      return reader;
    }
    std::string reason = *first;
    if (std::ranges::count(failures, "") > 0) {  // others have read it
      reason += ", on rank " + std::to_string(first - failures.begin());
    }
    if (skipped) skipped(reason);
    reasons += "\n  " + reason;
  }
  check(reasons.empty(), "checkpoint: ", root.string(),
        " must have a sound checkpoint or none at all, got none that could be read:", reasons);
  return std::nullopt;
}

}  // namespace moegrad
