// SPDX-License-Identifier: Apache-2.0
#include "framework/io/safetensors.h"

#include <algorithm>
#include <utility>

#include "framework/distributed/shard_spec.h"
#include "framework/io/safetensors_text.h"
#include "framework/runtime/utf8.h"
#include "framework/tensor/fill.h"

namespace moegrad {
namespace {

MappedFile map_file(const std::filesystem::path& path) {
  try {
    return MappedFile(path, "safetensors");
  } catch (const Error& error) {
    throw SafetensorsError(SafetensorsError::Kind::kUnreadable, error.what());
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      file_(map_file(path)),
      header_(parse_safetensors_header(file_.bytes(), path.string())) {}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const auto* const entry = find(name);
  if (entry == nullptr) {
    refuse(SafetensorsError::Kind::kUnknownTensor, path_.string(), "file must have tensor ",
           in_quotes(name), ", got ", entries().size(), " others");
  }
  return *entry;
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  const auto data = file_.bytes().subspan(header_.data_begin);
  check<ValueError>(entry.begin <= entry.end && entry.end <= data.size(),
                    "safetensors: ", path_.string(), ": entry must lie within the ", data.size(),
                    " bytes of the data, got [", entry.begin, ", ", entry.end, "]");
  return data.subspan(entry.begin, entry.bytes());
}

Tensor SafetensorsFile::read(std::string_view name) const { return read(at(name)); }

Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  const auto dtype = tensor_dtype(entry.dtype);
  check<DtypeError>(dtype.has_value(), "safetensors: ", path_.string(), ": ", in_quotes(entry.name),
                    " must be F32, F64, BF16, I64, I32, I8 or BOOL to be a Tensor, got ",
                    entry.dtype);
  Tensor tensor = Tensor::empty(Shape(entry.shape.dims()), *dtype);
  const auto elements = tensor.mutable_bytes();
  std::ranges::copy(bytes(entry), elements.begin());
  // Whatever a file holds: in C++ a bool must be 0 or 1.
  if (dtype == Dtype::kBool) {
    std::ranges::replace_if(
        elements, [](std::byte byte) { return byte != std::byte{0}; }, std::byte{1});
  }
  return tensor;
}

NamedTensors load_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  tensors.reserve(file.entries().size());
  for (const auto& entry : file.entries()) tensors.push_back({entry.name, file.read(entry)});
  return tensors;
}

void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    check<LayoutError>(tensor.layout() == Layout::kND, "safetensors: ", path.string(), ": ",
                       in_quotes(name), " must be ND, got ", tensor.layout());
    check<ValueError>(!is_part(tensor), "safetensors: ", path.string(), ": ", in_quotes(name),
                      " must be a whole tensor, got ",
                      is_part(tensor) ? part_text(*tensor.shard_spec()) : "",
                      "; fsdp::full_state_dict gathers whole tensors, and CheckpointSaver saves "
                      "shards");
    entries.push_back({.name = name,
                       .shape = SafetensorsShape({tensor.shape().begin(), tensor.shape().end()}),
                       .dtype = safetensors_dtype(tensor.dtype())});
  }
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const auto& [name, tensor] : tensors) {
    const Tensor values = tensor.is_contiguous() ? tensor : clone(tensor.detach());
    writer.write(name, 0, values.bytes());
  }
  writer.finish();
}

}  // namespace moegrad
