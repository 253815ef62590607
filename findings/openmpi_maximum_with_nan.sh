#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Open MPI 4.1.4 (Debian openmpi-bin 4.1.4-3+b1): MPI_MAX keeps or drops a NaN by the element's place in
# the buffer.
#
# Expected: one rule for all elements. MPI does not define the maximum with a NaN; `a > b ? a : b` would
#     keep the NaN of one rank and lose that of the other, everywhere in the same way.
# Seen: two ranks reduce 45 equal pairs. Whole SIMD registers follow the CPU's instruction, which keeps
#     the second operand, and the elements left over follow C's comparison, which keeps the other: a
#     NaN on rank 1 arrives in 44 places and is lost in the last, a NaN on rank 0 is lost in 44 places
#     and arrives in the last. MPI_MIN does the same. Without the component op/avx the 45 agree.
# Consequence: the usual check "reduce the largest gradient, or a found_inf flag, skip the step if it is
#     not finite" passes or fails by the length of the buffer; the maximum of a softmax split over
#     ranks loses the NaN of some rows. All ranks agree on the wrong value, so nothing hangs.
# moegrad is not affected: it sends bytes, reduces in its own code and keeps a NaN in kMax.
# Needs a CPU with SSE4.1 or AVX.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download openmpi-bin=4.1.4-3+b1 openmpi-common=4.1.4-3 libopenmpi3=4.1.4-3+b1 \
  libopenmpi-dev=4.1.4-3+b1 libevent-core-2.1-7=2.1.12-stable-8+deb12u1 \
  libevent-pthreads-2.1-7=2.1.12-stable-8+deb12u1 libhwloc15=2.9.0-1 \
  libpmix2=4.2.2-1+deb12u1 libmunge2=0.5.15-2+deb12u1 2>apt.log || { cat apt.log; exit 1; }
for package in *.deb; do dpkg -x "$package" .; done
libraries="$folder/usr/lib/$(gcc -print-multiarch)"
export OPAL_PREFIX="$folder/usr" OPAL_LIBDIR="$libraries/openmpi/lib" LD_LIBRARY_PATH="$libraries"
export PMIX_INSTALL_PREFIX="$libraries/pmix2" OMPI_MCA_mca_base_component_show_load_errors=0
export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

cat >maximum.c <<'C'
#include <math.h>
#include <mpi.h>
#include <stdio.h>

int main(int argc, char** argv) {
  enum { kCount = 45 };  // registers of 16, 8 and 4 floats, in turn, leave one over
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int with_nan = 0; with_nan < 2; ++with_nan) {
    float mine[kCount], maximum[kCount];
    for (int i = 0; i < kCount; ++i) mine[i] = rank == with_nan ? NAN : 1;
    MPI_Allreduce(mine, maximum, kCount, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    int same = 1;
    while (same < kCount && !isnan(maximum[same]) == !isnan(maximum[0])) ++same;
    if (rank == 0) {
      printf("NaN on rank %d: the first %d are %s, the last is %s\n", with_nan, same,
             isnan(maximum[0]) ? "NaN" : "1", isnan(maximum[kCount - 1]) ? "NaN" : "1");
    }
  }
  MPI_Finalize();
}
C
gcc -I "$libraries/openmpi/include" maximum.c -o maximum -L "$libraries" -l:libmpi.so.40 \
  -Wl,-rpath-link,"$libraries" -lm
run="usr/bin/mpirun.openmpi"
"$run" --version | head -1
{ "$run" -n 2 ./maximum && echo "without op/avx" && "$run" --mca op ^avx -n 2 ./maximum; } | tee seen

diff - seen <<'TEXT' && echo "as recorded"
NaN on rank 0: the first 44 are 1, the last is NaN
NaN on rank 1: the first 44 are NaN, the last is 1
without op/avx
NaN on rank 0: the first 45 are NaN, the last is NaN
NaN on rank 1: the first 45 are 1, the last is 1
TEXT
