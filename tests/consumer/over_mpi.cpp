// SPDX-License-Identifier: Apache-2.0
// A user's program whose ranks are processes where mpirun starts it, and else threads.
#include <iostream>

#include "moegrad.h"
#include "moegrad_mpi.h"

int main() {
  moegrad::launch_ranks(moegrad::default_world_size(2), [](moegrad::RankContext& rank) {
    const double sum = moegrad::all_reduce(*rank.group(), rank.rank() + 1.0);
    if (rank.rank() != 0) return;
    std::cout << "sum over " << rank.world_size() << " ranks: " << sum << std::endl;
  });
}
