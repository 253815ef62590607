// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor/box.h"
#include "framework/tensor/dtype.h"
#include "framework/tensor/shape.h"

namespace moegrad {

/// The box [begin, begin + shape) of a tensor, and the safetensors file that holds it under the
/// tensor's name.
struct CheckpointPiece {
  std::string file;
  Shape begin = {};
  Shape shape = {};

  Box box() const { return {.begin = begin, .shape = shape}; }

  friend bool operator==(const CheckpointPiece&, const CheckpointPiece&) = default;
};

/// A whole tensor. Exactly one piece contains each of its elements.
struct CheckpointTensor {
  Dtype dtype = Dtype::kFloat32;
  Shape shape = {};
  std::vector<CheckpointPiece> pieces = {};

  friend bool operator==(const CheckpointTensor&, const CheckpointTensor&) = default;
};

/// Size and CRC-32C of a file.
struct CheckpointFile {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;

  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

/// Size and CRC-32C of a file, read from beginning to end. Error
/// `checkpoint: <path>: must be readable, got <reason>`.
CheckpointFile describe_file(const std::filesystem::path& path);

/// What a checkpoint contains, whatever number of ranks wrote it. Stored as manifest.json in the
/// checkpoint's folder, the last file to be written.
struct CheckpointManifest {
  std::int64_t step = 0;  // optimizer steps done
  int world_size = 1;     // number of ranks that wrote it
  /// Texts for the code that saves and loads, such as the position of the schedule or the sampler.
  std::map<std::string, std::string> values = {};
  std::map<std::string, CheckpointTensor> tensors = {};  // by name
  std::map<std::string, CheckpointFile> files = {};      // by name in the folder

  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

/// The text in a rank's file that says where a tensor's piece begins. The file's metadata has it
/// under the tensor's name.
std::string begin_in_file(const Shape& begin);

std::string to_json(const CheckpointManifest& manifest);

/// Reads what to_json() writes and proves it sound: its checksum is right, no key is unknown or
/// missing, no file is outside the folder, and the pieces of each tensor contain each of its
/// elements once, in separate files.
///
/// Throws ValueError `<subject>: <requirement>, got <what>`.
CheckpointManifest parse_checkpoint_manifest(std::string_view text, const std::string& subject);

/// The manifest of what several ranks wrote. `parts` are to_json() of each rank's own manifest,
/// with files of its own. Step and values must be equal, and a tensor that several ranks have must
/// have the same shape and dtype on all of them. Ranks may have different tensors, as the stages of
/// a pipeline do. Throws like parse_checkpoint_manifest(), for each rank's part and for the result.
CheckpointManifest merge_checkpoint_manifests(std::span<const std::string> parts,
                                              const std::string& subject);

}  // namespace moegrad
