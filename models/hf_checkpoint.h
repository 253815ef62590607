// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "framework/io/safetensors.h"

namespace moegrad::models {

inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

/// The contents of a model.safetensors.index.json.
struct HfIndex {
  std::string total_size;  // bytes of all tensors, as the index has it; empty: absent
  std::map<std::string, std::string> weight_map = {};  // tensor name -> file name
};

/// Reads an index, {"metadata": {"total_size": bytes}, "weight_map": {name: file}}. total_size may
/// be absent or anything; other keys are ignored. A file name must be the plain name of a
/// .safetensors file. Other names are refused, so that no index points outside its folder.
///
/// Throws ValueError `<subject>: <requirement>, got <what>`.
HfIndex parse_hf_index(std::string_view text, const std::string& subject);

/// A Hugging Face checkpoint for reading: one safetensors file, or several that an index names,
/// mapped into memory.
class HfCheckpoint {
 public:
  struct Entry {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;

    /// Row-major, not necessarily aligned.
    std::span<const std::byte> bytes() const { return file->bytes(*entry); }
  };

  /// `path` is a .safetensors file, an index (*.json), or a folder with model.safetensors or else
  /// model.safetensors.index.json, in that order as in transformers.
  ///
  /// Throws
  ///
  ///     ValueError        the folder has neither; the index is malformed; a tensor is not in the
  ///                       file that the index names; a file has a tensor that the index does not
  ///                       assign to it
  ///     Error             the index cannot be read
  ///     SafetensorsError  a file cannot be read or is malformed
  explicit HfCheckpoint(const std::filesystem::path& path);
  HfCheckpoint(const HfCheckpoint&) = delete;
  HfCheckpoint& operator=(const HfCheckpoint&) = delete;

  /// The file or index that was opened.
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, Entry, std::less<>>& tensors() const { return tensors_; }
  /// Null if there is no tensor of that name.
  const Entry* find(std::string_view name) const;
  /// What is wrong with the index and changes nothing: its total_size, which transformers does not
  /// read. Empty: nothing.
  const std::string& warning() const { return warning_; }

 private:
  void open_indexed();

  std::filesystem::path path_;
  std::deque<SafetensorsFile> files_;  // entries point into it
  std::map<std::string, Entry, std::less<>> tensors_;
  std::string warning_;
};

/// A CRC-32C that tells two checkpoints apart, without reading all of a large one: of the names,
/// types and shapes of all tensors, and of the bytes of each; of a tensor that has more than 64
/// KiB, of four pieces from its beginning to its end. It does not depend on how the tensors are
/// divided into files. Throws what HfCheckpoint throws.
std::uint32_t checkpoint_checksum(const std::filesystem::path& path);

}  // namespace moegrad::models
