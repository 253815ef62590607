#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Eigen 3.4.0 (libeigen3-dev 3.4.0-4): the float square root of infinity is NaN, or infinity, by the
# element's place in the array.
#
# Expected: `x.sqrt()` gives what std::sqrt gives, infinity, and equal elements give equal results.
# Seen: the elements that fill whole SIMD registers give NaN, since the root is made there as
#     x * rsqrt(x) = infinity * 0. The last, left-over elements go through std::sqrt and give
#     infinity. With -DEIGEN_FAST_MATH=0, and in double, the root is infinity everywhere. For both types
#     exp(-infinity) splits in the same way: 2.9e-39 (in float) in whole registers, 0 after them.
# Consequence: in Adam, one gradient above 1.8e19 makes the second moment infinite. With a true root
#     that parameter stands still (m / infinity = 0); written with Eigen arrays it becomes NaN, unless
#     it is among the last elements of its tensor. A softmax that masks with -infinity gives the
#     masked tokens a weight that is not zero.
# moegrad is not affected: optimizers call std::sqrt, its exp(-infinity) is 0 in every lane.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download libeigen3-dev=3.4.0-4 2>apt.log || { cat apt.log; exit 1; }
dpkg -x libeigen3-dev_*.deb .

cat >root.cpp <<'CPP'
#include <Eigen/Core>
#include <cmath>
#include <cstdio>
#include <limits>

template <typename T>
const char* kind(T x) {
  return std::isnan(x) ? "NaN" : std::isinf(x) ? "infinity" : x == T{0} ? "0" : "small but not 0";
}

template <typename T>
void show(const char* type) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const Eigen::Array<T, Eigen::Dynamic, 1> x = Eigen::Array<T, Eigen::Dynamic, 1>::Constant(9, infinity);
  const Eigen::Array<T, Eigen::Dynamic, 1> root = x.sqrt(), power = (-x).exp();
  std::printf("%s sqrt(infinity): first of 9 %s, last %s\n", type, kind(root[0]), kind(root[8]));
  std::printf("%s exp(-infinity): first of 9 %s, last %s\n", type, kind(power[0]), kind(power[8]));
}

int main() {
  std::printf("Eigen %d.%d.%d\n", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
  show<float>("float");
  show<double>("double");
}
CPP
g++ -O2 -I usr/include/eigen3 root.cpp -o root
./root | tee seen
g++ -O2 -DEIGEN_FAST_MATH=0 -I usr/include/eigen3 root.cpp -o root
echo "with EIGEN_FAST_MATH=0"
./root | grep "float sqrt" | tee -a seen

diff - seen <<'TEXT' && echo "as recorded"
Eigen 3.4.0
float sqrt(infinity): first of 9 NaN, last infinity
float exp(-infinity): first of 9 small but not 0, last 0
double sqrt(infinity): first of 9 infinity, last infinity
double exp(-infinity): first of 9 small but not 0, last 0
float sqrt(infinity): first of 9 infinity, last infinity
TEXT
