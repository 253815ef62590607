// SPDX-License-Identifier: Apache-2.0
#include "framework/io/checkpoint_manifest.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "framework/io/crc32c.h"
#include "framework/io/strict_json.h"
#include "framework/io/utf8.h"
#include "framework/runtime/error.h"

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

// A value of the manifest and its path, which every message shows.
class Node {
 public:
  Node(const json& value, std::string path, const std::string& who)
      : value_(value), path_(std::move(path)), who_(who) {}

  template <class... Parts>
  void require(bool ok, const Parts&... requirement) const {
    if (ok) return;
    std::ostringstream message;
    message << who_ << ": " << path_ << ' ';
    (message << ... << requirement);
    throw ValueError(message.str());
  }

  // Requires an object with exactly these keys.
  const Node& with_keys(const std::set<std::string>& keys) const {
    for (const auto& key : keys) at(key);
    for (const auto& [key, member] : value_.items()) {
      require(keys.contains(key), "must have known keys alone, got ", in_quotes(key));
    }
    return *this;
  }

  Node at(const std::string& key) const {
    require(value_.is_object(), "must be an object, got ", in_quotes(value_.dump()));
    require(value_.contains(key), "must have ", key, ", got none");
    return {value_.at(key), path_ == kTop ? key : path_ + "." + key, who_};
  }

  // Calls visit(key, node) for each member of an object.
  template <class Visit>
  void for_each_member(const Visit& visit) const {
    require(value_.is_object(), "must be an object, got ", in_quotes(value_.dump()));
    for (const auto& [key, member] : value_.items()) {
      visit(key, Node(member, path_ + " " + in_quotes(key), who_));
    }
  }

  template <class Visit>
  void for_each_element(const Visit& visit) const {
    require(value_.is_array(), "must be an array, got ", in_quotes(value_.dump()));
    for (std::size_t i = 0; i < value_.size(); ++i) {
      visit(Node(value_[i], path_ + "[" + std::to_string(i) + "]", who_));
    }
  }

  std::uint64_t unsigned_up_to(std::uint64_t most) const {
    require(value_.is_number_unsigned() && value_.get<std::uint64_t>() <= most,
            "must be an integer from 0 to ", most, ", got ", in_quotes(value_.dump()));
    return value_.get<std::uint64_t>();
  }

  std::int64_t integer() const {
    return static_cast<std::int64_t>(unsigned_up_to(std::numeric_limits<std::int64_t>::max()));
  }

  const std::string& text() const {
    require(value_.is_string(), "must be a string, got ", in_quotes(value_.dump()));
    return value_.get_ref<const std::string&>();
  }

  Shape shape() const {
    Shape shape;
    for_each_element([&](const Node& dim) {
      require(shape.ndim() < Shape::kMaxDims, "must have at most ", Shape::kMaxDims,
              " dimensions, got more");
      shape.push_back(dim.integer());
    });
    return shape;
  }

  static constexpr const char* kTop = "the manifest";

 private:
  const json& value_;
  std::string path_;
  const std::string& who_;
};

Dtype read_dtype(const Node& node) {
  constexpr Dtype kAll[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16, Dtype::kInt64};
  const auto found = std::ranges::find(kAll, node.text(),
                                       [](Dtype dtype) { return std::string(to_string(dtype)); });
  node.require(found != std::end(kAll), "must be float32, float64, bfloat16 or int64, got ",
               in_quotes(node.text()));
  return *found;
}

// The number of elements; the shape must have no negative sizes.
std::int64_t checked_numel(const Node& node, const Shape& shape) {
  std::int64_t numel = 1;
  bool overflows = false;
  for (const auto dim : shape) {
    overflows = overflows || __builtin_mul_overflow(numel, dim, &numel);
  }
  node.require(!overflows, "must have fewer than 2^63 elements, got ", shape);
  return numel;
}

void check_box(const Node& node, const CheckpointPiece& piece, const Shape& whole) {
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

CheckpointTensor read_tensor(const Node& node, const std::map<std::string, CheckpointFile>& files,
                             Pieces pieces) {
  node.with_keys({"dtype", "shape", "pieces"});
  CheckpointTensor tensor{.dtype = read_dtype(node.at("dtype")), .shape = node.at("shape").shape()};
  auto missing = checked_numel(node.at("shape"), tensor.shape);
  node.at("pieces").for_each_element([&](const Node& entry) {
    entry.with_keys({"file", "begin", "shape"});
    CheckpointPiece piece{.file = entry.at("file").text(),
                          .begin = entry.at("begin").shape(),
                          .shape = entry.at("shape").shape()};
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
  });
  node.require(missing == 0 || pieces == Pieces::kSome, "must be whole in its pieces, got ",
               missing, " elements in none");
  return tensor;
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

CheckpointManifest parse(std::string_view text, const std::string& who, Pieces pieces) {
  constexpr int kMaxDepth = 6;
  const json parsed = parse_strict_json(text, kMaxDepth, who);
  const Node top(parsed, Node::kTop, who);
  const auto format = top.at("format").integer();  // first: another format has other keys
  top.at("format").require(format == kFormat, "must be ", kFormat, ", got ", format);
  top.with_keys({"format", "step", "world_size", "values", "tensors", "files", "crc32c"});
  const auto checksum = checksum_of(parsed);
  top.at("crc32c").require(top.at("crc32c").integer() == checksum, "must be ", checksum, ", got ",
                           top.at("crc32c").integer());
  CheckpointManifest manifest{
      .step = top.at("step").integer(),
      .world_size =
          static_cast<int>(top.at("world_size").unsigned_up_to(std::numeric_limits<int>::max()))};
  top.at("world_size")
      .require(manifest.world_size >= 1, "must be at least 1, got ", manifest.world_size);
  top.at("values").for_each_member([&](const std::string& name, const Node& value) {
    manifest.values.emplace(name, value.text());
  });
  top.at("files").for_each_member([&](const std::string& name, const Node& file) {
    file.require(is_plain_name(name), "must be the name of a file of the same folder");
    file.with_keys({"bytes", "crc32c"});
    const auto crc = file.at("crc32c").unsigned_up_to(std::numeric_limits<std::uint32_t>::max());
    manifest.files.emplace(name,
                           CheckpointFile{static_cast<std::uint64_t>(file.at("bytes").integer()),
                                          static_cast<std::uint32_t>(crc)});
  });
  top.at("tensors").for_each_member([&](const std::string& name, const Node& tensor) {
    manifest.tensors.emplace(name, read_tensor(tensor, manifest.files, pieces));
  });
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

CheckpointManifest parse_checkpoint_manifest(std::string_view text, const std::string& who) {
  return parse(text, who, Pieces::kAll);
}

CheckpointManifest merge_checkpoint_manifests(std::span<const std::string> parts,
                                              const std::string& who) {
  CheckpointManifest whole = parse(parts[0], who, Pieces::kSome);
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    auto part = parse(parts[rank], who, Pieces::kSome);
    whole.files.merge(part.files);
    check<ValueError>(part.files.empty(), who, ": ranks must write files of their own, rank ", rank,
                      " has another's");
    for (auto& [name, tensor] : whole.tensors) {
      const auto own = part.tensors.find(name);
      check<ValueError>(own != part.tensors.end() && own->second.shape == tensor.shape &&
                            own->second.dtype == tensor.dtype,
                        who, ": rank ", rank, " must have ", in_quotes(name), " as ", tensor.dtype,
                        " ", tensor.shape, " like rank 0");
      std::ranges::move(own->second.pieces, std::back_inserter(tensor.pieces));
    }
    check<ValueError>(part.tensors.size() == whole.tensors.size() && part.step == whole.step &&
                          part.world_size == whole.world_size && part.values == whole.values,
                      who, ": rank ", rank, " must have the step, tensors and values of rank 0");
  }
  // Parsed again, so that everything that is written is accepted by a reader.
  return parse(to_json(whole), who, Pieces::kAll);
}

}  // namespace moegrad
