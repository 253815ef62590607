#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# HDF5 1.10.8 under h5py 3.7.0 (Debian libhdf5-103-1 1.10.8+repack1-1, python3-h5py-serial 3.7.0-8): how
# a float is stored in half precision depends on the numbers written before it.
#
# Expected: `dataset[...] = x` with a dataset of type "f2" stores x.astype("f2"), the nearest halves, as
#     `create_dataset(name, data=x, dtype="f2")` does, and each element for itself.
# Seen: on creation NumPy converts, and rightly. An assignment leaves it to HDF5. There 0.9999 becomes
#     1.0; but once a number below 6.1e-5 (a subnormal half) was converted, numbers that round up to a
#     power of two come out as half of it: 0.9999 is stored as 0.5, 127.99 as 64. Later elements of
#     the same write stay like that. Ties round up, and the int32 70000 is stored as NaN.
# Consequence: of a million normal weights, 340 are halved, and which ones depends on their order. A count of
#     70000 turns into a NaN. Cast before the assignment: dataset[...] = x.astype("f2").
# moegrad is not affected: it has no HDF5, and of float16 it only reads files, which is exact.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download python3-h5py=3.7.0-8 python3-h5py-serial=3.7.0-8 \
  libhdf5-103-1=1.10.8+repack1-1 libhdf5-hl-100=1.10.8+repack1-1 libsz2=1.0.6-1+b1 libaec0=1.0.6-1+b1 \
  liblzf1=3.6-3 python3-numpy=1:1.24.2-1+deb12u1 libblas3=3.11.0-2 liblapack3=3.11.0-2 \
  libgfortran5=12.2.0-14+deb12u1 libquadmath0=12.2.0-14+deb12u1 2>apt.log || { cat apt.log; exit 1; }
for package in *.deb; do dpkg -x "$package" .; done
libraries="$folder/usr/lib/$(gcc -print-multiarch)"
export LD_LIBRARY_PATH="$libraries:$libraries/hdf5/serial:$libraries/blas:$libraries/lapack"
export PYTHONPATH="$folder/usr/lib/python3/dist-packages"

cat >half.py <<'PY'
import h5py
import numpy as np

print(f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.__version__}, NumPy {np.__version__}")
file = h5py.File("half.h5", "w")


def stored(name, x):
    """x as float16: given on creation, and assigned."""
    given = file.create_dataset(name + " given", data=x, dtype="f2")[...]
    dataset = file.create_dataset(name + " assigned", x.shape, dtype="f2")
    dataset[...] = x
    return given, dataset[...]


def show(name, x):
    with np.errstate(over="ignore"):
        for value, *pair in zip(x, *stored(name, x)):
            print(f"{name} {value}: given on creation {pair[0]}, assigned {pair[1]}")


show("float32", np.array([0.9999, 1e-6, 0.9999, 3, 127.99, 2049], "f4"))
show("int32", np.array([65504, 65520, 70000, 200000], "i4"))
weights = np.random.default_rng(0).standard_normal(1000000).astype("f4")
given, assigned = stored("weights", weights)
halved = np.abs(assigned.astype("f4")) < 0.6 * np.abs(given.astype("f4"))
print(f"{np.count_nonzero(halved)} of 1000000 normal weights are halved")
PY
python3.11 half.py | tee seen

diff - seen <<'TEXT' && echo "as recorded"
HDF5 1.10.8, h5py 3.7.0, NumPy 1.24.2
float32 0.9998999834060669: given on creation 1.0, assigned 1.0
float32 9.999999974752427e-07: given on creation 1.0132789611816406e-06, assigned 1.0132789611816406e-06
float32 0.9998999834060669: given on creation 1.0, assigned 0.5
float32 3.0: given on creation 3.0, assigned 3.0
float32 127.98999786376953: given on creation 128.0, assigned 64.0
float32 2049.0: given on creation 2048.0, assigned 2050.0
int32 65504: given on creation 65504.0, assigned 65504.0
int32 65520: given on creation inf, assigned inf
int32 70000: given on creation inf, assigned nan
int32 200000: given on creation inf, assigned inf
340 of 1000000 normal weights are halved
TEXT
