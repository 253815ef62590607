// SPDX-License-Identifier: Apache-2.0
#include "models/causal_lm/hf_layout.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/distributed/shard_spec.h"
#include "fsdp/flat_layout.h"
#include "models/causal_lm/model.h"
#include "tests/models/causal_lm/expert_layouts.h"
#include "tests/testing.h"

namespace moegrad::models::hf_layout_test {
namespace {

using Role = nn::ParameterLayout::Role;
using test::message_of;

/// The ways in which expert weights are stored: role, in_first.
constexpr std::pair<Role, bool> kStorages[] = {{Role::kExpertGateUp, true},
                                               {Role::kExpertGateUp, false},
                                               {Role::kExpertDown, true},
                                               {Role::kExpertDown, false}};

constexpr int kWorldSizes[] = {1, 2, 3, 4, 7, 8, 128, 256, 512, 1024};

struct Sizes {
  std::int64_t experts = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
};

nn::ParameterLayout expert_layout(Role role, bool in_first, const Sizes& sizes) {
  const auto e = sizes.experts;
  const auto in = role == Role::kExpertGateUp ? sizes.hidden : sizes.intermediate;
  const auto out = role == Role::kExpertGateUp ? 2 * sizes.intermediate : sizes.hidden;
  return {.role = role,
          .stacked = in_first ? Shape{e, in, out} : Shape{e, out, in},
          .in_first = in_first};
}

Shape flattened(const nn::ParameterLayout& layout) {
  return {layout.stacked[0] * layout.stacked[1], layout.stacked[2]};
}

std::string name_of(Role role) {
  return std::string("m.experts.") + (role == Role::kExpertGateUp ? "gate_up_proj" : "down_proj");
}

using Position = std::pair<std::int64_t, std::int64_t>;  // row, column

/// Where each element of each Hugging Face tensor stands in the stored parameter:
/// [tensor][row][column]
using Positions = std::map<std::string, std::vector<std::vector<Position>>>;

/// By the definition of the stacked parameters, one element at a time.
Positions expected_positions(Role role, bool in_first, const Sizes& sizes) {
  const auto h = sizes.hidden, w = sizes.intermediate;
  Positions positions;
  const auto add = [&](std::int64_t e, const std::string& projection, std::int64_t rows,
                       std::int64_t columns, const auto& position) {
    auto& tensor = positions["m.experts." + std::to_string(e) + "." + projection + ".weight"];
    tensor.resize(static_cast<std::size_t>(rows));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        tensor[static_cast<std::size_t>(i)].push_back(position(i, j));
      }
    }
  };
  for (std::int64_t e = 0; e < sizes.experts; ++e) {
    if (role == Role::kExpertDown) {
      add(e, "down_proj", h, w, [&](auto i, auto j) {
        return in_first ? Position(e * w + j, i) : Position(e * h + i, j);
      });
      continue;
    }
    add(e, "gate_proj", w, h, [&](auto i, auto j) {
      return in_first ? Position(e * h + j, i) : Position(e * 2 * w + i, j);
    });
    add(e, "up_proj", w, h, [&](auto i, auto j) {
      return in_first ? Position(e * h + j, w + i) : Position(e * 2 * w + w + i, j);
    });
  }
  return positions;
}

/// The pieces of all ranks, each with the first row of its rank.
std::vector<std::pair<std::int64_t, HfPiece>> pieces_of_all_ranks(
    const std::string& name, const nn::ParameterLayout& layout, const Shape& shape, int world_size,
    HfExperts experts = HfExperts::kPerExpert) {
  std::vector<std::pair<std::int64_t, HfPiece>> pieces;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto rows = shard_range(shape[0], world_size, rank);
    for (auto& piece : hugging_face_pieces(name, layout, shape, rows.begin, rows.end, experts)) {
      pieces.emplace_back(rows.begin, std::move(piece));
    }
  }
  return pieces;
}

/// Every element of every expected tensor is in exactly one piece, at its place.
void expect_partition(const std::vector<std::pair<std::int64_t, HfPiece>>& pieces,
                      const Positions& expected) {
  std::map<std::string, std::vector<std::vector<int>>> seen;
  for (const auto& [name, rows] : expected) {
    for (const auto& row : rows) seen[name].emplace_back(row.size(), 0);
  }
  for (const auto& [begin, piece] : pieces) {
    ASSERT_TRUE(expected.contains(piece.name)) << piece.name;
    const auto& tensor = expected.at(piece.name);
    ASSERT_EQ(piece.shape, (Shape{std::ssize(tensor), std::ssize(tensor[0])})) << piece.name;
    for (std::int64_t i = 0; i < piece.rows; ++i) {
      for (std::int64_t j = 0; j < piece.columns; ++j) {
        const auto row = static_cast<std::size_t>(piece.row + i);
        const auto column = static_cast<std::size_t>(piece.column + j);
        ASSERT_LT(row, tensor.size()) << piece.name;
        ASSERT_LT(column, tensor[row].size()) << piece.name;
        const auto along_rows = piece.transposed ? j : i, along_columns = piece.transposed ? i : j;
        ASSERT_EQ(
            Position(begin + piece.stored_row + along_rows, piece.stored_column + along_columns),
            tensor[row][column])
            << piece.name << " [" << row << ", " << column << "]";
        ++seen[piece.name][row][column];
      }
    }
  }
  for (const auto& [name, rows] : seen) {
    for (const auto& row : rows) {
      for (const auto count : row) ASSERT_EQ(count, 1) << name;
    }
  }
}

class HfPieces : public ::testing::TestWithParam<int> {};

TEST_P(HfPieces, OfAllRanksPartitionEveryExpertTensor) {
  const Sizes all_sizes[] = {{5, 7, 3}, {1, 1, 1}, {3, 4, 2}, {4, 20, 11}, {40, 3, 1}, {2, 65, 9}};
  for (const auto& sizes : all_sizes) {
    for (const auto& [role, in_first] : kStorages) {
      SCOPED_TRACE(::testing::Message()
                   << sizes.experts << ' ' << sizes.hidden << ' ' << sizes.intermediate << ' '
                   << name_of(role) << (in_first ? " pretransposed" : " hf"));
      const auto layout = expert_layout(role, in_first, sizes);
      expect_partition(pieces_of_all_ranks(name_of(role), layout, flattened(layout), GetParam()),
                       expected_positions(role, in_first, sizes));
    }
  }
}

TEST_P(HfPieces, CutByColumnsPartitionEveryExpertTensor) {
  for (const auto& sizes : {Sizes{5, 7, 3}, Sizes{1, 1, 1}, Sizes{4, 20, 11}}) {
    for (const auto& [role, in_first] : kStorages) {
      const auto layout = expert_layout(role, in_first, sizes);
      const auto shape = flattened(layout);
      const auto whole = hugging_face_pieces(name_of(role), layout, shape, 0, shape[0]);
      std::vector<std::pair<std::int64_t, HfPiece>> pieces;
      for (int rank = 0; rank < GetParam(); ++rank) {
        const auto columns = shard_range(shape[1], GetParam(), rank);
        for (auto& piece : cut_columns(whole, columns.begin, columns.end)) {
          const auto across = piece.transposed ? piece.rows : piece.columns;
          ASSERT_TRUE(0 <= piece.stored_column && piece.stored_column + across <= columns.size());
          piece.stored_column += columns.begin;
          pieces.emplace_back(0, std::move(piece));
        }
      }
      expect_partition(pieces, expected_positions(role, in_first, sizes));
    }
  }
}

TEST_P(HfPieces, OfAllRanksPartitionVectorsAndMatrices) {
  for (const auto& shape : {Shape{9}, Shape{1}, Shape{37, 5}, Shape{3, 1}, Shape{300}}) {
    Positions expected;
    const auto columns = shape.ndim() == 1 ? 1 : shape[1];
    auto pieces = pieces_of_all_ranks("norm.weight", {}, shape, GetParam());
    for (auto& [begin, piece] : pieces) {
      ASSERT_EQ(piece.shape, shape);
      piece.shape = {shape[0], columns};
    }
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      auto& row = expected["norm.weight"].emplace_back();
      for (std::int64_t j = 0; j < columns; ++j) row.emplace_back(i, j);
    }
    expect_partition(pieces, expected);
  }
}

TEST_P(HfPieces, OfAllRanksPartitionFusedExperts) {
  const Sizes sizes = {5, 7, 3};
  for (const auto& [role, in_first] : kStorages) {
    const auto layout = expert_layout(role, in_first, sizes);
    auto pieces = pieces_of_all_ranks(name_of(role), layout, flattened(layout), GetParam(),
                                      HfExperts::kFused);
    const auto out = layout.stacked[in_first ? 2 : 1], in = layout.stacked[in_first ? 1 : 2];
    for (auto& [begin, piece] : pieces) {
      ASSERT_EQ(piece.shape, (Shape{sizes.experts, out, in}));
      piece.shape = {sizes.experts * out, in};
    }
    Positions expected;
    for (std::int64_t e = 0; e < sizes.experts; ++e) {
      for (std::int64_t i = 0; i < out; ++i) {
        auto& row = expected[name_of(role)].emplace_back();
        for (std::int64_t j = 0; j < in; ++j) {
          row.push_back(in_first ? Position(e * in + j, i) : Position(e * out + i, j));
        }
      }
    }
    expect_partition(pieces, expected);
  }
}

TEST_P(HfPieces, OfTheReleasedModelsCoverEveryElement) {
  for (const auto& sizes : {Sizes{128, 2048, 768}, Sizes{128, 4096, 1536}}) {
    for (const auto& [role, in_first] : kStorages) {
      const auto layout = expert_layout(role, in_first, sizes);
      const auto shape = flattened(layout);
      std::map<std::string, std::int64_t> covered;
      for (const auto& [begin, piece] :
           pieces_of_all_ranks(name_of(role), layout, shape, GetParam())) {
        ASSERT_TRUE(0 <= piece.row && piece.row + piece.rows <= piece.shape[0]);
        ASSERT_TRUE(0 <= piece.column && piece.column + piece.columns <= piece.shape[1]);
        covered[piece.name] += piece.rows * piece.columns;
      }
      const auto tensors = role == Role::kExpertGateUp ? 2 * sizes.experts : sizes.experts;
      EXPECT_EQ(std::ssize(covered), tensors);
      for (const auto& [name, elements] : covered) {
        EXPECT_EQ(elements, sizes.hidden * sizes.intermediate) << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, HfPieces, ::testing::ValuesIn(kWorldSizes));

TEST(HfPieces, OfTheLargestModelOn512RanksAreAQuarterOfAnExpert) {
  const Sizes sizes = {128, 4096, 1536};
  for (const auto role : {Role::kExpertGateUp, Role::kExpertDown}) {
    const bool down = role == Role::kExpertDown;
    const auto layout = expert_layout(role, true, sizes);
    const auto rows = shard_range(flattened(layout)[0], 512, 6);
    EXPECT_EQ(rows.size(), down ? 384 : 1024);
    EXPECT_EQ(flattened(layout)[1], down ? 4096 : 3072);
    const auto pieces =
        hugging_face_pieces(name_of(role), layout, flattened(layout), rows.begin, rows.end);
    HfPiece expected = {.name = "m.experts.1.gate_proj.weight",
                        .shape = {1536, 4096},
                        .column = 2048,
                        .rows = 1536,
                        .columns = 1024,
                        .transposed = true};
    if (down) {
      expected.name = "m.experts.1.down_proj.weight";
      expected.shape = {4096, 1536};
      expected.column = 768;
      expected.rows = 4096;
      expected.columns = 384;
      EXPECT_EQ(pieces, std::vector{expected});
    } else {
      auto up = expected;
      up.name = "m.experts.1.up_proj.weight";
      up.stored_column = 1536;
      EXPECT_EQ(pieces, (std::vector{expected, up}));
    }
  }
}

TEST(HfPieces, OfAnEmptyShardAreNone) {
  const auto layout = expert_layout(Role::kExpertDown, true, {2, 3, 5});
  EXPECT_TRUE(hugging_face_pieces("down_proj", layout, {10, 3}, 10, 10).empty());
  EXPECT_TRUE(hugging_face_pieces("norm.weight", {}, {4}, 4, 4).empty());
}

TEST(HfPieces, VisitElementsAsDefined) {
  HfPiece piece = {.name = "w",
                   .shape = {5, 7},
                   .row = 1,
                   .column = 3,
                   .rows = 2,
                   .columns = 3,
                   .stored_row = 4,
                   .stored_column = 6};
  for (const bool transposed : {false, true}) {
    piece.transposed = transposed;
    std::vector<Position> visited, expected;
    for_each_element(piece, 10, [&](std::int64_t stored, std::int64_t tensor) {
      visited.emplace_back(stored, tensor);
    });
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        const auto stored = transposed ? (4 + j) * 10 + 6 + i : (4 + i) * 10 + 6 + j;
        expected.emplace_back(stored, (1 + i) * 7 + 3 + j);
      }
    }
    EXPECT_EQ(visited, expected);
  }
}

TEST(HfPieces, NameWhatIsWrong) {
  const auto layout = expert_layout(Role::kExpertGateUp, true, {2, 3, 5});
  EXPECT_EQ(message_of<ShapeError>([&] {
              hugging_face_pieces("m.gate_up_proj", layout, {6, 11}, 0, 1);
            }),
            "hugging_face_pieces: 'm.gate_up_proj' must be [2, 3, 10] with its first two "
            "dimensions flattened, got [6, 11]");
  EXPECT_EQ(message_of<ValueError>([&] {
              hugging_face_pieces("m.down_proj", layout, {6, 10}, 0, 1);
            }),
            "hugging_face_pieces: expert parameter 'm.down_proj' must be called gate_up_proj");
  EXPECT_EQ(message_of<ValueError>([&] {
              hugging_face_pieces("gate_up_proj", layout, {6, 10}, 2, 7);
            }),
            "hugging_face_pieces: rows of 'gate_up_proj' must lie in [0, 6), got [2, 7)");
  EXPECT_EQ(message_of<ValueError>([&] {
              hugging_face_pieces("w", {}, {6, 10}, 3, 2);
            }),
            "hugging_face_pieces: rows of 'w' must lie in [0, 6), got [3, 2)");
  EXPECT_EQ(message_of<ShapeError>([&] {
              hugging_face_pieces("w", {}, {2, 3, 4}, 0, 2);
            }),
            "hugging_face_pieces: 'w' must be a vector or a matrix, got [2, 3, 4]");
  EXPECT_EQ(message_of<LayoutError>([&] {
              to_hugging_face("w", {}, Tensor::empty_nz({2, 2}, {1, 2, 2}, Dtype::kFloat32));
            }),
            "to_hugging_face: 'w' must be contiguous and row-major");
}

TEST(ToHuggingFace, CopiesParametersOfEveryDtype) {
  for (const auto dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16}) {
    for (const auto& [role, in_first] : kStorages) {
      const Sizes sizes = {3, 5, 2};
      const auto layout = expert_layout(role, in_first, sizes);
      const Tensor stored = test::randn(flattened(layout), 3, dtype);
      const auto tensors = to_hugging_face(name_of(role), layout, stored);
      const auto positions = expected_positions(role, in_first, sizes);
      EXPECT_EQ(tensors.size(), positions.size());
      const Tensor values = to_dtype(stored, Dtype::kFloat64);
      const auto from = values.data<double>();
      for (const auto& [name, tensor] : tensors) {
        EXPECT_EQ(tensor.dtype(), dtype);
        std::vector<double> expected;
        for (const auto& row : positions.at(name)) {
          for (const auto& [i, j] : row) {
            expected.push_back(from[static_cast<std::size_t>(i * values.dim(1) + j)]);
          }
        }
        const Tensor got = to_dtype(tensor, Dtype::kFloat64);
        EXPECT_TRUE(test::bitwise_equal(got, Tensor::from(expected, got.shape()))) << name;
      }
    }
  }
}

TEST(ToHuggingFace, FusesExpertsAsTransformers5Does) {
  for (const bool in_first : {true, false}) {
    const Sizes sizes = {3, 5, 2};
    const auto gate_up = expert_layout(Role::kExpertGateUp, in_first, sizes);
    const Tensor stored = test::randn(flattened(gate_up), 3);
    const auto name = name_of(Role::kExpertGateUp);
    const auto fused = to_hugging_face(name, gate_up, stored, HfExperts::kFused);
    ASSERT_EQ(fused.size(), 1U);
    EXPECT_EQ(fused[0].name, name);
    const auto one_by_one = to_hugging_face(name, gate_up, stored);  // gate, up of each expert
    const auto in = one_by_one[0].tensor.dim(1), out = one_by_one[0].tensor.dim(0);
    ASSERT_EQ(fused[0].tensor.shape(), (Shape{3, 2 * out, in}));
    const auto* at = fused[0].tensor.bytes().data();
    for (const auto& part : one_by_one) {
      const auto bytes = part.tensor.bytes();
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), at)) << part.name;
      at += bytes.size();
    }
  }
}

TEST(ToHuggingFace, KeepsADenseParameterAsItIs) {
  const Tensor base = test::randn({4, 3});
  const Tensor rows = Tensor::as_strided(base, {2, 3}, {3, 1}, 6);  // not at the storage's start
  const auto tensors = to_hugging_face("model.norm.weight", {}, rows);
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].name, "model.norm.weight");
  EXPECT_TRUE(test::bitwise_equal(tensors[0].tensor, rows));
  EXPECT_FALSE(&tensors[0].tensor.storage() == &base.storage());
}

}  // namespace
}  // namespace moegrad::models::hf_layout_test
