// SPDX-License-Identifier: Apache-2.0
#include "tests/models/read_safetensors.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "framework/runtime/error.h"

namespace moegrad::testing {
namespace {

/// 8 bytes of header length (little-endian), a JSON header, then the bytes it points into.
constexpr std::size_t kLengthBytes = 8;

Dtype dtype_named(const std::string& name) {
  const std::map<std::string, Dtype> dtypes = {
      {"F32", Dtype::kFloat32}, {"F64", Dtype::kFloat64}, {"I64", Dtype::kInt64}};
  const auto found = dtypes.find(name);
  check(found != dtypes.end(), "read_safetensors: dtype must be F32, F64 or I64, got ", name);
  return found->second;
}

}  // namespace

NamedTensors read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check(file.good(), "read_safetensors: cannot read ", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  check(bytes.size() >= kLengthBytes, "read_safetensors: ", path, " is cut short");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  check(length <= bytes.size() - kLengthBytes, "read_safetensors: ", path, " is cut short");
  const char* const header = bytes.data() + kLengthBytes;
  const char* const data = header + length;
  const auto data_bytes = bytes.size() - kLengthBytes - length;

  NamedTensors tensors;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  const auto entries = nlohmann::json::parse(header, data);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto dims = entry.at("shape").get<std::vector<std::int64_t>>();
    const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::size_t, std::size_t>>();
    const Tensor tensor = Tensor::empty(Shape(dims), dtype_named(entry.at("dtype")));
    check(begin <= end && end <= data_bytes &&
              end - begin == static_cast<std::size_t>(tensor.storage().bytes()),
          "read_safetensors: '", name, "' must have ", tensor.storage().bytes(), " bytes within ",
          data_bytes, ", got [", begin, ", ", end, ")");
    std::memcpy(tensor.storage().data(), data + begin, end - begin);
    tensors.push_back({name, tensor});
    ranges.emplace_back(begin, end);
  }
  std::ranges::sort(ranges);
  std::size_t expected = 0;
  for (const auto& [begin, end] : ranges) {
    check(begin == expected, "read_safetensors: gap or overlap at byte ", expected);
    expected = end;
  }
  check(expected == data_bytes, "read_safetensors: ", data_bytes - expected, " bytes left over");
  return tensors;
}

const Tensor& find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  check(found != tensors.end(), "find: no tensor '", name, "'");
  return found->tensor;
}

}  // namespace moegrad::testing
