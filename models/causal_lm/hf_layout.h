// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor/named_tensor.h"
#include "models/causal_lm/hf_names.h"
#include "nn/parameter_layout.h"

namespace moegrad::models {

/// One rectangle of a Hugging Face tensor, and its position in rows [begin, end) of a stored
/// parameter. A tensor [d0, d1, ...] counts as the matrix of its innermost rows (a vector as one
/// column), a stored parameter as [d0, d1 * ...].
///
///     tensor(row + i, column + j) = stored(stored_row + i, stored_column + j)
///                                or stored(stored_row + j, stored_column + i) if transposed
///
/// for 0 <= i < rows, 0 <= j < columns.
struct HfPiece {
  std::string name;  // of the Hugging Face tensor
  Shape shape;       // of the whole tensor
  std::int64_t row = 0;
  std::int64_t column = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stored_row = 0;
  std::int64_t stored_column = 0;
  bool transposed = false;

  friend bool operator==(const HfPiece&, const HfPiece&) = default;
};

/// The pieces that form rows [begin, end) of a stored parameter of shape `global_shape`, in the
/// order of experts, gate before up. None for an empty range. Where experts are stored one by one,
/// the tensors of a mixture have the names of `names`; where they are fused, those of this
/// library's modules, which are those of transformers 5.
///
/// ShapeError unless `global_shape` agrees with `layout`. ValueError unless 0 <= begin <= end <=
/// rows, and for an expert parameter whose name does not end in ".gate_up_proj" or ".down_proj".
std::vector<HfPiece> hugging_face_pieces(const std::string& parameter_name,
                                         const nn::ParameterLayout& layout,
                                         const Shape& global_shape, std::int64_t begin,
                                         std::int64_t end,
                                         HfExperts experts = HfExperts::kPerExpert,
                                         const HfNames& names = {});

/// The parts of `pieces`, which are pieces of whole stored rows, that are in columns [begin, end).
/// They are returned as pieces of rows that have these columns only.
std::vector<HfPiece> cut_columns(const std::vector<HfPiece>& pieces, std::int64_t begin,
                                 std::int64_t end);

/// Calls visit(stored element, tensor element) for every element of a piece: indices into row-major
/// stored rows [begin, end) of `stored_columns` columns, and into the row-major tensor.
template <class Visit>
void for_each_element(const HfPiece& piece, std::int64_t stored_columns, const Visit& visit) {
  const auto tensor_columns = piece.shape.ndim() == 1 ? 1 : piece.shape[-1];
  const auto row_step = piece.transposed ? 1 : stored_columns;
  const auto column_step = piece.transposed ? stored_columns : 1;
  for (std::int64_t i = 0; i < piece.rows; ++i) {
    const auto stored = piece.stored_row * stored_columns + piece.stored_column + i * row_step;
    const auto tensor = (piece.row + i) * tensor_columns + piece.column;
    for (std::int64_t j = 0; j < piece.columns; ++j) visit(stored + j * column_step, tensor + j);
  }
}

/// The number of columns of a stored parameter of this shape.
inline std::int64_t stored_columns(const Shape& shape) { return shape.ndim() == 2 ? shape[1] : 1; }

/// Copies a piece out of stored rows into its whole tensor, in elements of `size` bytes.
void copy_to_hugging_face(const HfPiece& piece, const std::byte* stored, std::int64_t columns,
                          std::byte* tensor, std::int64_t size);

/// The Hugging Face tensors of a whole stored parameter, or of its gradient, copied.
/// ShapeError as above; LayoutError for a FRACTAL_NZ tensor.
NamedTensors to_hugging_face(const std::string& parameter_name, const nn::ParameterLayout& layout,
                             const Tensor& whole, HfExperts experts = HfExperts::kPerExpert,
                             const HfNames& names = {});

/// The name of a tensor of this library's modules where experts are stored one by one: with `mlp`
/// as names.mixture in what belongs to a mixture's gate or experts.
std::string in_checkpoint(std::string_view name, const HfNames& names);

}  // namespace moegrad::models
