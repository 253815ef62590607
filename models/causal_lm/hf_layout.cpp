// SPDX-License-Identifier: Apache-2.0
// Shapes: E experts, in and out features of one projection. gate_up stacks P = 2 Hugging Face
// matrices along its out features (out = 2I); down consists of P = 1 matrix.
#include "models/causal_lm/hf_layout.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "framework/runtime/error.h"

namespace moegrad::models {
namespace {

using Role = nn::ParameterLayout::Role;

/// Name of matrix `part` (0 gate or down, 1 up) of expert `e`; `folder` is "...mlp.experts.".
std::string expert_name(const std::string& folder, std::int64_t e, Role role, std::int64_t part,
                        const HfNames& names) {
  const auto [gate, up, down] = names.projections;
  const auto projection = role == Role::kExpertDown ? down : part == 0 ? gate : up;
  return in_checkpoint(folder + std::to_string(e), names).append(".").append(projection) +
         ".weight";
}

/// Cuts stored rows [begin, end) at the end of each expert and of each of its matrices.
class ExpertPieces {
 public:
  ExpertPieces(const std::string& parameter_name, const nn::ParameterLayout& layout,
               std::int64_t begin, std::int64_t end, HfExperts experts, const HfNames& names)
      : name_(parameter_name),
        folder_(parameter_name.substr(0, parameter_name.rfind('.') + 1)),
        role_(layout.role),
        in_first_(layout.in_first),
        num_experts_(layout.stacked[0]),
        in_(layout.stacked[in_first_ ? 1 : 2]),
        out_(layout.stacked[in_first_ ? 2 : 1]),
        parts_(role_ == Role::kExpertGateUp ? 2 : 1),
        begin_(begin),
        end_(end),
        fused_(experts == HfExperts::kFused),
        names_(names) {}

  std::vector<HfPiece> cut() {
    const auto expert_rows = in_first_ ? in_ : out_;
    for (auto e = begin_ / expert_rows; e * expert_rows < end_; ++e) {
      for (std::int64_t part = 0; part < parts_; ++part) cut_matrix(e, part);
    }
    return std::move(pieces_);
  }

 private:
  // Stored as [in, out]: rows are in-features, and each row crosses all parts.
  // Stored as [out, in]: the rows of the parts follow each other.
  void cut_matrix(std::int64_t e, std::int64_t part) {
    const auto part_out = out_ / parts_;
    const auto first = in_first_ ? e * in_ : e * out_ + part * part_out;
    const auto from = std::max(begin_, first);
    const auto to = std::min(end_, first + (in_first_ ? in_ : part_out));
    if (from >= to) return;
    HfPiece piece;
    piece.stored_row = from - begin_;
    piece.transposed = in_first_;
    if (in_first_) {
      piece.column = from - first;
      piece.rows = part_out;
      piece.columns = to - from;
      piece.stored_column = part * part_out;
    } else {
      piece.row = from - first;
      piece.rows = to - from;
      piece.columns = in_;
    }
    if (fused_) {
      piece.name = name_;
      piece.shape = {num_experts_, out_, in_};
      piece.row += e * out_ + part * part_out;
    } else {
      piece.name = expert_name(folder_, e, role_, part, names_);
      piece.shape = {part_out, in_};
    }
    pieces_.push_back(std::move(piece));
  }

  std::string name_, folder_;
  Role role_;
  bool in_first_;
  std::int64_t num_experts_, in_, out_, parts_, begin_, end_;
  bool fused_;
  HfNames names_;
  std::vector<HfPiece> pieces_;
};

void check_expert_parameter(const std::string& name, const nn::ParameterLayout& layout,
                            const Shape& shape) {
  const std::string_view expected =
      layout.role == Role::kExpertGateUp ? "gate_up_proj" : "down_proj";
  const auto local = std::string_view(name).substr(name.rfind('.') + 1);
  check<ValueError>(local == expected, "hugging_face_pieces: expert parameter '", name,
                    "' must be called ", expected);
  const auto& stacked = layout.stacked;
  check<ShapeError>(stacked.ndim() == 3 && shape == Shape{stacked[0] * stacked[1], stacked[2]},
                    "hugging_face_pieces: '", name, "' must be ", stacked,
                    " with its first two dimensions flattened, got ", shape);
}

template <class Word>
void copy_words(const HfPiece& piece, const std::byte* stored, std::int64_t columns,
                std::byte* tensor) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
  for_each_element(piece, columns, [&](std::int64_t from, std::int64_t to) {
    std::memcpy(tensor + to * kSize, stored + from * kSize, sizeof(Word));
  });
}

}  // namespace

std::string in_checkpoint(std::string_view name, const HfNames& names) {
  std::string text(name);
  for (const std::string_view part : {".mlp.gate.", ".mlp.experts."}) {
    const auto at = text.find(part);
    if (at != text.npos) return text.replace(at + 1, 3, names.mixture);
  }
  return text;
}

std::vector<HfPiece> hugging_face_pieces(const std::string& parameter_name,
                                         const nn::ParameterLayout& layout,
                                         const Shape& global_shape, std::int64_t begin,
                                         std::int64_t end, HfExperts experts,
                                         const HfNames& names) {
  const bool stacked = layout.role == Role::kExpertGateUp || layout.role == Role::kExpertDown;
  if (stacked) check_expert_parameter(parameter_name, layout, global_shape);
  check<ShapeError>(global_shape.ndim() == 1 || global_shape.ndim() == 2, "hugging_face_pieces: '",
                    parameter_name, "' must be a vector or a matrix, got ", global_shape);
  check<ValueError>(0 <= begin && begin <= end && end <= global_shape[0],
                    "hugging_face_pieces: rows of '", parameter_name, "' must lie in [0, ",
                    global_shape[0], "), got [", begin, ", ", end, ")");
  if (begin == end) return {};
  if (stacked) return ExpertPieces(parameter_name, layout, begin, end, experts, names).cut();
  const bool fused = experts == HfExperts::kFused;
  return {{.name = fused ? parameter_name : in_checkpoint(parameter_name, names),
           .shape = global_shape,
           .row = begin,
           .rows = end - begin,
           .columns = stored_columns(global_shape)}};
}

std::vector<HfPiece> cut_columns(const std::vector<HfPiece>& pieces, std::int64_t begin,
                                 std::int64_t end) {
  std::vector<HfPiece> cut;
  for (auto piece : pieces) {
    // A row of the tensor is a stored column if transposed.
    auto& first = piece.transposed ? piece.row : piece.column;
    auto& count = piece.transposed ? piece.rows : piece.columns;
    const auto from = std::max(begin, piece.stored_column);
    const auto to = std::min(end, piece.stored_column + count);
    if (from >= to) continue;
    first += from - piece.stored_column;
    count = to - from;
    piece.stored_column = from - begin;
    cut.push_back(std::move(piece));
  }
  return cut;
}

void copy_to_hugging_face(const HfPiece& piece, const std::byte* stored, std::int64_t columns,
                          std::byte* tensor, std::int64_t size) {
  switch (size) {
    case 2:
      return copy_words<std::uint16_t>(piece, stored, columns, tensor);
    case 4:
      return copy_words<std::uint32_t>(piece, stored, columns, tensor);
    default:
      return copy_words<std::uint64_t>(piece, stored, columns, tensor);
  }
}

NamedTensors to_hugging_face(const std::string& parameter_name, const nn::ParameterLayout& layout,
                             const Tensor& whole, HfExperts experts, const HfNames& names) {
  check<LayoutError>(whole.is_contiguous(), "to_hugging_face: '", parameter_name,
                     "' must be contiguous and row-major");
  const auto size = size_of(whole.dtype());
  const auto* const stored = whole.bytes().data();
  NamedTensors tensors;
  for (const auto& piece : hugging_face_pieces(parameter_name, layout, whole.shape(), 0,
                                               whole.dim(0), experts, names)) {
    // The pieces of a fused tensor follow each other.
    if (tensors.empty() || tensors.back().name != piece.name) {
      tensors.push_back({piece.name, Tensor::empty(piece.shape, whole.dtype())});
    }
    copy_to_hugging_face(piece, stored, stored_columns(whole.shape()),
                         tensors.back().tensor.mutable_bytes().data(), size);
  }
  return tensors;
}

}  // namespace moegrad::models
