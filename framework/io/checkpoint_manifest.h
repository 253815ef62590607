// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

/// A whole tensor, of which every element stands in exactly one piece.
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

/// What a checkpoint holds, whatever number of ranks wrote it; manifest.json in its folder, the
/// last file to be written.
struct CheckpointManifest {
  std::int64_t step = 0;  // optimizer steps done
  int world_size = 1;     // that wrote it
  /// Texts for those who save and load, such as the schedule's or the sampler's place.
  std::map<std::string, std::string> values = {};
  std::map<std::string, CheckpointTensor> tensors = {};  // by name
  std::map<std::string, CheckpointFile> files = {};      // by name in the folder

  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

/// How a rank's file says, in its metadata under the tensor's name, where its piece begins.
std::string begin_in_file(const Shape& begin);

std::string to_json(const CheckpointManifest& manifest);

/// Reads what to_json() writes and proves it sound: its checksum, no unknown or missing key, no
/// file outside the folder, and the pieces of a tensor are its elements, each once, in files of
/// their own.
///
/// Throws ValueError `<who>: <requirement>, got <what>`.
CheckpointManifest parse_checkpoint_manifest(std::string_view text, const std::string& who);

/// The manifest of what several ranks wrote. `parts` are to_json() of each rank's own, alike but
/// for the files and the pieces in them. Throws as parsing does, for the ranks' parts as well as
/// for what they make together.
CheckpointManifest merge_checkpoint_manifests(std::span<const std::string> parts,
                                              const std::string& who);

}  // namespace moegrad
