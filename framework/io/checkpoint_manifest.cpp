// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_manifest.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "framework/distributed/slow_storage.h"
#include "framework/io/json_node.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"

namespace moegrad {
namespace {

using nlohmann::json;

constexpr std::int64_t kFormat = 1;

json dims_of(const Shape& shape) {
  return json(std::vector<std::int64_t>(shape.begin(), shape.end()));
}

// The checksum of all members except itself, as they are written without spaces.
std::uint32_t checksum_of(json manifest) {
  manifest.erase("crc32c");
  return crc32c(std::as_bytes(std::span<const char>(manifest.dump())));
}

Shape read_shape(const JsonNode& node) {
  const auto dims = node.list(&JsonNode::count);
  node.require(std::ssize(dims) <= Shape::kMaxDims, "must have at most ", Shape::kMaxDims,
               " dimensions, got ", dims.size());
  return Shape(dims);
}

Dtype read_dtype(const JsonNode& node) {
  constexpr Dtype kAll[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16, Dtype::kInt64,
                            Dtype::kInt32,   Dtype::kInt8,    Dtype::kBool};
  const auto found = std::ranges::find(kAll, node.text(),
                                       [](Dtype dtype) { return std::string(to_string(dtype)); });
  node.require(found != std::end(kAll),
               "must be float32, float64, bfloat16, int64, int32, int8 or bool, got ", node);
  return *found;
}

// The number of elements; the shape must have no negative sizes.
std::int64_t checked_numel(const JsonNode& node, const Shape& shape) {
  std::int64_t numel = 1;
  bool overflows = false;
  for (const auto dim : shape) {
    overflows = overflows || __builtin_mul_overflow(numel, dim, &numel);
  }
  node.require(!overflows, "must have fewer than 2^63 elements, got ", shape);
  return numel;
}

void check_box(const JsonNode& node, const CheckpointPiece& piece, const Shape& whole) {
  const bool ranks_agree = piece.begin.ndim() == whole.ndim() && piece.shape.ndim() == whole.ndim();
  bool inside = ranks_agree;
  for (std::int64_t i = 0; inside && i < whole.ndim(); ++i) {
    inside = piece.shape[i] > 0 && piece.shape[i] <= whole[i] &&
             piece.begin[i] <= whole[i] - piece.shape[i];
  }
  node.require(inside, "must be a box within ", whole, ", not empty, got ", piece.shape, " from ",
               piece.begin);
}

// Whether a manifest must list all pieces of each tensor, or may list some.
enum class Pieces : bool { kAll, kSome };

CheckpointTensor read_tensor(const JsonNode& node,
                             const std::map<std::string, CheckpointFile>& files, Pieces pieces) {
  node.allow_only({"dtype", "shape", "pieces"});
  CheckpointTensor tensor{.dtype = read_dtype(node["dtype"]), .shape = read_shape(node["shape"])};
  auto missing = checked_numel(node["shape"], tensor.shape);
  for (const auto& entry : node["pieces"].elements()) {
    entry.allow_only({"file", "begin", "shape"});
    CheckpointPiece piece{.file = entry["file"].text(),
                          .begin = read_shape(entry["begin"]),
                          .shape = read_shape(entry["shape"])};
    entry.require(files.contains(piece.file), "must be in one of the files, got ",
                  in_quotes(piece.file));
    check_box(entry, piece, tensor.shape);
    for (const auto& other : tensor.pieces) {
      entry.require(!overlap(piece.box(), other.box()), "must not overlap another, got ",
                    piece.shape, " from ", piece.begin, " and ", other.shape, " from ",
                    other.begin);
      // A file has one piece of a tensor, under its name.
      entry.require(other.file != piece.file, "must be in a file of its own, got another in ",
                    in_quotes(piece.file));
    }
    missing -= piece.shape.numel();
    tensor.pieces.push_back(std::move(piece));
  }
  node.require(missing == 0 || pieces == Pieces::kSome, "must be whole in its pieces, got ",
               missing, " elements in none");
  return tensor;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

CheckpointManifest parse(std::string_view text, const std::string& subject, Pieces pieces) {
  constexpr int kMaxDepth = 6;
  const auto top = JsonNode::parse(text, kMaxDepth, subject);
  const auto format = top["format"].count();  // first: another format has other keys
  top["format"].require(format == kFormat, "must be ", kFormat, ", got ", format);
  top.allow_only({"format", "step", "world_size", "values", "tensors", "files", "crc32c"});
  const auto checksum = checksum_of(top.value());
  top["crc32c"].require(top["crc32c"].count() == checksum, "must be ", checksum, ", got ",
                        top["crc32c"]);
  CheckpointManifest manifest{
      .step = top["step"].count(),
      .world_size =
          static_cast<int>(top["world_size"].unsigned_up_to(std::numeric_limits<int>::max()))};
  top["world_size"].require(manifest.world_size >= 1, "must be at least 1, got ",
                            manifest.world_size);
  for (const auto& [name, value] : top["values"].members()) {
    manifest.values.emplace(name, value.text());
  }
  for (const auto& [name, file] : top["files"].members()) {
    file.require(is_plain_name(name), "must be the name of a file of the same folder");
    file.allow_only({"bytes", "crc32c"});
    const auto crc = file["crc32c"].unsigned_up_to(std::numeric_limits<std::uint32_t>::max());
    manifest.files.emplace(name, CheckpointFile{static_cast<std::uint64_t>(file["bytes"].count()),
                                                static_cast<std::uint32_t>(crc)});
  }
  for (const auto& [name, tensor] : top["tensors"].members()) {
    manifest.tensors.emplace(name, read_tensor(tensor, manifest.files, pieces));
  }
  return manifest;
}

}  // namespace

std::string begin_in_file(const Shape& begin) { return dims_of(begin).dump(); }

std::string to_json(const CheckpointManifest& manifest) {
  json tensors = json::object(), files = json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    json pieces = json::array();
    for (const auto& piece : tensor.pieces) {
      pieces.push_back(
          {{"file", piece.file}, {"begin", dims_of(piece.begin)}, {"shape", dims_of(piece.shape)}});
    }
    tensors[name] = {{"dtype", to_string(tensor.dtype)},
                     {"shape", dims_of(tensor.shape)},
                     {"pieces", std::move(pieces)}};
  }
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"crc32c", file.crc32c}};
  }
  json whole = {{"format", kFormat},
                {"step", manifest.step},
                {"world_size", manifest.world_size},
                {"values", manifest.values},
                {"tensors", std::move(tensors)},
                {"files", std::move(files)}};
  whole["crc32c"] = checksum_of(whole);
  return whole.dump(/*indent=*/1) + "\n";
}

CheckpointManifest parse_checkpoint_manifest(std::string_view text, const std::string& subject) {
  return parse(text, subject, Pieces::kAll);
}

CheckpointManifest merge_checkpoint_manifests(std::span<const std::string> parts,
                                              const std::string& subject) {
  CheckpointManifest whole = parse(parts[0], subject, Pieces::kSome);
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    auto part = parse(parts[rank], subject, Pieces::kSome);
    whole.files.merge(part.files);
    check<ValueError>(part.files.empty(), subject, ": ranks must write files of their own, rank ",
                      rank, " has another's");
    check<ValueError>(part.step == whole.step && part.world_size == whole.world_size &&
                          part.values == whole.values,
                      subject, ": rank ", rank, " must have the step and values of rank 0");
    for (auto& [name, own] : part.tensors) {
      const auto [known, added] = whole.tensors.try_emplace(name, own);
      if (added) continue;
      auto& tensor = known->second;
      check<ValueError>(own.shape == tensor.shape && own.dtype == tensor.dtype, subject, ": rank ",
                        rank, " must have ", in_quotes(name), " as ", tensor.dtype, " ",
                        tensor.shape, " like the ranks before, got ", own.dtype, " ", own.shape);
      std::ranges::move(own.pieces, std::back_inserter(tensor.pieces));
    }
  }
  // Parsed again, so that everything that is written is accepted by a reader.
  return parse(to_json(whole), subject, Pieces::kAll);
}

CheckpointFile describe_file(const std::filesystem::path& path) {
  const auto require = [&](bool ok) {
    if (ok) return;
    const auto reason = std::generic_category().message(errno);
    check(false, "checkpoint: ", path.string(), ": must be readable, got ", reason);
  };
  const SlowStorage storage("reading " + path.string());
  // Read, not mapped: if the disk fails, a mapping kills the process.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(descriptor >= 0);
  constexpr std::size_t kBlock = 1 << 20;
  std::vector<std::byte> block(kBlock);
  CheckpointFile file;
  ssize_t count = 0;
  do {
    count = ::read(descriptor, block.data(), block.size());
    if (count <= 0) continue;
    const auto bytes = std::span(block).first(static_cast<std::size_t>(count));
    file.crc32c = crc32c(bytes, file.crc32c);
    file.bytes += bytes.size();
  } while (count > 0 || (count < 0 && errno == EINTR));
  const int reason = errno;
  close(descriptor);
  errno = reason;
  require(count == 0);
  return file;
}

}  // namespace moegrad
