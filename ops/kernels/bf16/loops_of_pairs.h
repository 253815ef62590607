// SPDX-License-Identifier: Apache-2.0
#pragma once

// Instantiated by each file that is compiled for one kind of vectors: Note [Two vector widths].

#include "ops/kernels/bf16/tile_loops.h"

namespace moegrad::kernels::bf16::tile_loops {

template <class Pair>
constexpr int panels_of(int rows) {
  constexpr int kByRows[2][7] = {{0, 8, 6, 4, 3, 2, 2},   // a vector is a panel
                                 {0, 4, 2, 2, 1, 1, 1}};  // two vectors are a panel
  return kByRows[Pair::kLanes == 16 ? 0 : 1][rows];
}

/// The tiles of a Pair as they are.
template <class Pair>
struct Plain {
  template <int kRows, int kPanels>
  static constexpr Tile kTile = &multiply<Pair, kRows, kPanels>;
};

template <class Tiles, int kRows, int kPanels>
constexpr void add_tiles(Loops& loops) {
  loops.tiles[kRows][kPanels] = Tiles::template kTile<kRows, kPanels>;
  if constexpr (kPanels > 1) add_tiles<Tiles, kRows, kPanels - 1>(loops);
}

template <class Pair, class Tiles, int kRows = 6>
constexpr void add_rows(Loops& loops) {
  loops.panels[kRows] = panels_of<Pair>(kRows);
  add_tiles<Tiles, kRows, panels_of<Pair>(kRows)>(loops);
  if constexpr (kRows > 1) add_rows<Pair, Tiles, kRows - 1>(loops);
}

template <class Pair, class Tiles = Plain<Pair>>
constexpr Loops make_loops() {
  Loops loops{};
  loops.order = PairOrder::kChains;
  loops.left_unit_bytes = kWords * Pair::kLeftWordBytes;
  loops.left_row_bytes = 4;
  loops.pack_left = &Pair::pack_left;
  if constexpr (Pair::kLanes == kPanel) loops.round = &round_sums<typename Pair::Sum>;
  loops.most_rows = 6;
  add_rows<Pair, Tiles>(loops);
  return loops;
}

}  // namespace moegrad::kernels::bf16::tile_loops
