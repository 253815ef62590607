// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/io/mapped_file.h"
#include "framework/io/safetensors_format.h"
#include "framework/io/safetensors_header.h"
#include "framework/io/safetensors_writer.h"
#include "framework/tensor/named_tensor.h"

namespace moegrad {

/// A safetensors file, mapped into memory (Note [safetensors]). The constructor reads the header
/// and checks that it agrees with the size of the file. Only bytes() and read() touch the data.
///
/// The file may be replaced meanwhile, as SafetensorsWriter does, but must not be changed in place.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// The tensors by offset.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Null if there is no tensor of that name.
  const SafetensorsEntry* find(std::string_view name) const { return header_.find(name); }
  /// SafetensorsError (kUnknownTensor) if there is none.
  const SafetensorsEntry& at(std::string_view name) const;

  /// The bytes of one of entries(), as long as this object lives. They need not be aligned.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  /// A copy as a Tensor; DtypeError unless it is F32, F64, BF16, I64, I32, I8 or BOOL.
  Tensor read(std::string_view name) const;
  Tensor read(const SafetensorsEntry& entry) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
};

/// Copies of all tensors, in the order of the file.
NamedTensors load_safetensors(const std::filesystem::path& path);

/// Writes the tensors' values to a file, which appears when it is complete and replaces an earlier
/// one. LayoutError for FRACTAL_NZ tensors. ValueError for a part of a tensor whose other parts
/// other ranks hold, as in the state_dict() of a module that fully_shard has sharded: gather whole
/// ones with fsdp::full_state_dict, or save shards with CheckpointSaver.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace moegrad
