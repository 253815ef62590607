// SPDX-License-Identifier: Apache-2.0
#include "models/hf_checkpoint.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "framework/distributed/slow_storage.h"
#include "framework/io/json_node.h"
#include "framework/io/mapped_file.h"
#include "framework/runtime/crc32c.h"
#include "framework/runtime/error.h"
#include "framework/runtime/utf8.h"
#include "framework/tensor/shape.h"

namespace moegrad::models {
namespace {

bool is_plain_file_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

/// The folder's single file if there is one, else its index.
std::filesystem::path resolve(const std::filesystem::path& path) {
  std::error_code unreadable;  // ignored: opening the file reports it
  if (!std::filesystem::is_directory(path, unreadable)) return path;
  for (const auto name : {kSingleFile, kIndexFile}) {
    if (std::filesystem::exists(path / name, unreadable)) return path / name;
  }
  throw ValueError("checkpoint: " + path.string() + " must hold " + std::string(kSingleFile) +
                   " or " + std::string(kIndexFile) + ", got neither");
}

std::string read_index_text(const std::filesystem::path& path) {
  const MappedFile file(path, "checkpoint");
  check<ValueError>(file.bytes().size() <= kMaxSafetensorsHeaderBytes, path.string(),
                    ": must have at most ", kMaxSafetensorsHeaderBytes, " bytes, got ",
                    file.bytes().size());
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t before) {
  constexpr std::size_t kWhole = 64 << 10, kPieces = 4, kPiece = 4096;
  if (bytes.size() <= kWhole) return crc32c(bytes, before);
  for (std::size_t i = 0; i < kPieces; ++i) {
    const auto begin = (bytes.size() - kPiece) * i / (kPieces - 1);
    before = crc32c(bytes.subspan(begin, kPiece), before);
  }
  return before;
}

}  // namespace

HfIndex parse_hf_index(std::string_view text, const std::string& subject) {
  constexpr int kMaxDepth = 16;  // enough for what other programs write into the file
  const auto index = JsonNode::parse(text, kMaxDepth, subject);
  HfIndex result;
  const auto metadata = index["metadata"];
  if (metadata.contains("total_size")) result.total_size = metadata["total_size"].value().dump();
  for (const auto& [name, file] : index["weight_map"].members()) {
    file.require(is_plain_file_name(file.text()),
                 "must be a .safetensors file of the same folder, got ", file);
    result.weight_map.emplace(name, file.text());
  }
  return result;
}

HfCheckpoint::HfCheckpoint(const std::filesystem::path& path) : path_(resolve(path)) {
  if (path_.extension() == ".json") {
    open_indexed();
    return;
  }
  const auto& file = files_.emplace_back(path_);
  for (const auto& entry : file.entries()) tensors_.emplace(entry.name, Entry{&file, &entry});
}

const HfCheckpoint::Entry* HfCheckpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void HfCheckpoint::open_indexed() {
  const auto subject = path_.string();
  const auto index = parse_hf_index(read_index_text(path_), subject);
  std::map<std::string, const SafetensorsFile*> files;
  for (const auto& [name, file] : index.weight_map) files.emplace(file, nullptr);
  for (auto& [name, file] : files) {
    file = &files_.emplace_back(path_.parent_path() / name);
    for (const auto& entry : file->entries()) {
      const auto listed = index.weight_map.find(entry.name);
      check<ValueError>(listed != index.weight_map.end(), subject,
                        ": weight_map must list every tensor of its files, got no ",
                        in_quotes(entry.name), " of ", in_quotes(name));
      check<ValueError>(listed->second == name, subject, ": tensor ", in_quotes(entry.name),
                        " must be in ", in_quotes(listed->second), " alone, got it in ",
                        in_quotes(name));
      tensors_.emplace(entry.name, Entry{file, &entry});
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : index.weight_map) {
    const auto* const tensor = find(name);
    check<ValueError>(tensor != nullptr, subject, ": tensor ", in_quotes(name), " must be in ",
                      in_quotes(file), ", got none there");
    bytes += tensor->entry->bytes();
  }
  const auto right = std::to_string(bytes);  // some programs write it as a real: "24.0"
  const auto& got = index.total_size;
  if (got.empty() || got == right || got == right + ".0") return;
  warning_ = subject + ": total_size should be the bytes of all tensors, " + right + ", got " +
             on_one_line(got);
}

std::uint32_t checkpoint_checksum(const std::filesystem::path& path) {
  const SlowStorage storage("reading " + path.string());
  const HfCheckpoint checkpoint(path);
  std::uint32_t checksum = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    std::ostringstream header;
    header << name << ' ' << tensor.entry->dtype << ' ' << Shape(tensor.entry->shape.dims());
    checksum = crc32c(std::as_bytes(std::span(header.view())), checksum);
    checksum = checksum_of(tensor.bytes(), checksum);
  }
  return checksum;
}

}  // namespace moegrad::models
