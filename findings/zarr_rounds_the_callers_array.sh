#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Zarr 2.13.6 with numcodecs 0.11.0 (Debian python3-zarr 2.13.6+ds-1, python3-numcodecs 0.11.0+ds-4+b1): an
# array that is stored through the filter BitRound is rounded in the caller's memory, too, here and there.
#
# Expected: `stored[...] = weights` reads `weights`. A filter that loses bits loses them in the file.
# Seen: BitRound.encode() rounds in place what it is given, and Zarr gives it the caller's own memory where a
#     chunk is whole and lies there as in the file. Of 10 rows in chunks of 4, rows 0 to 7 of the caller's array
#     are rounded and rows 8 and 9, a chunk's beginning, are not. In chunks of 4 rows and half of the columns none
#     is, in one chunk of all rows all are. An array that may not be written is refused. A NaN whose payload
#     is in the low bits alone comes back as infinity.
# Consequence: to write a compressed checkpoint changes the weights that training goes on with, which rows
#     depends on the size of the chunks. Store a copy: stored[...] = weights.copy().
# moegrad is not affected: it writes no Zarr, and its writers take `const` bytes.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download python3-zarr=2.13.6+ds-1 python3-numcodecs=0.11.0+ds-4+b1 python3-asciitree=0.3.3-3 \
  python3-fasteners=0.17.3-2 python3-entrypoints=0.4-2 libblosc1=1.21.3+ds-1 libsnappy1v5=1.1.9-3 \
  python3-numpy=1:1.24.2-1+deb12u1 libblas3=3.11.0-2 liblapack3=3.11.0-2 \
  libgfortran5=12.2.0-14+deb12u1 libquadmath0=12.2.0-14+deb12u1 2>apt.log || { cat apt.log; exit 1; }
for package in *.deb; do dpkg -x "$package" .; done
libraries="$folder/usr/lib/$(gcc -print-multiarch)"
export LD_LIBRARY_PATH="$libraries:$libraries/blas:$libraries/lapack"
export PYTHONPATH="$folder/usr/lib/python3/dist-packages"

cat >bits.py <<'PY'
import numcodecs
import numpy as np
import zarr

print(f"Zarr {zarr.__version__}, numcodecs {numcodecs.__version__}, NumPy {np.__version__}")
weights = np.random.default_rng(0).standard_normal((10, 6)).astype("f4")


def store(array, chunks):
    stored = zarr.zeros(array.shape, chunks=chunks, dtype="f4", filters=[numcodecs.BitRound(keepbits=7)])
    stored[...] = array
    return stored[...]


for chunks in [(4, 6), (4, 3), (10, 6), (16, 6)]:
    mine = weights.copy()
    read = store(mine, chunks)
    changed = [row for row in range(10) if not np.array_equal(mine[row], weights[row])]
    print(f"chunks {chunks}: {np.count_nonzero(read != weights)} of 60 stored numbers are rounded, "
          f"in memory the rows {changed}")
mine = weights.copy()
mine.flags.writeable = False
try:
    store(mine, (10, 6))
except ValueError as error:
    print(f"read-only: {error}")
nan = np.array([0x7F800001, 0x7FC00000], "u4").view("f4")
print(f"NaN is stored as {store(nan, (2,))}")
PY
python3.11 bits.py 2>&1 | tee seen

diff - seen <<'TEXT' && echo "as recorded"
Zarr 2.13.6+ds, numcodecs 0.11.0+ds, NumPy 1.24.2
chunks (4, 6): 60 of 60 stored numbers are rounded, in memory the rows [0, 1, 2, 3, 4, 5, 6, 7]
chunks (4, 3): 60 of 60 stored numbers are rounded, in memory the rows []
chunks (10, 6): 60 of 60 stored numbers are rounded, in memory the rows [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
chunks (16, 6): 60 of 60 stored numbers are rounded, in memory the rows []
read-only: output array is read-only
NaN is stored as [inf nan]
TEXT
