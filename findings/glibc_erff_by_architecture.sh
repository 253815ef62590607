#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# glibc 2.36 (Debian libc6-amd64-cross and libc6-arm64-cross 2.36-8cross1): which functions have the same
# bits on amd64 and on arm64.
#
# Expected: one version, the same C source in IEEE arithmetic: the same bits, or else all functions differ
#     a little.
# Seen: it goes by function. expf, logf, sinf, cosf, powf and exp, log, sin, cos, pow agree for each of a
#     million arguments; erff, tanhf, log1pf, expm1f and erf do not, erff for one in 38. On arm64 the
#     compiler contracts a * b + c into one rounding, on amd64 it may not. But glibc has most of the first
#     group compiled for FMA a second time, and takes that code on a CPU with FMA: without, exp, sin,
#     cos and pow have other bits on amd64, too, and erff keeps those it had.
# Consequence: a GELU by erff trains to other bits on arm64, a softmax by expf does not, so a test of a few
#     functions may find the machines equal.
# moegrad is not affected: its elementary functions are its own, correctly rounded (docs/numbers.md).
# Needs a CPU with FMA.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download libc6-amd64-cross=2.36-8cross1 libc6-arm64-cross=2.36-8cross1 \
  libc6-dev-arm64-cross=2.36-8cross1 libgcc-12-dev-arm64-cross=12.2.0-14cross1 \
  libgcc-s1-arm64-cross=12.2.0-14cross1 linux-libc-dev-arm64-cross=6.1.4-1cross1 \
  gcc-12-aarch64-linux-gnu=12.2.0-14cross1 cpp-12-aarch64-linux-gnu=12.2.0-14cross1 \
  binutils-aarch64-linux-gnu=2.40-2 qemu-user-static 2>apt.log || { cat apt.log; exit 1; }
for package in *.deb; do dpkg -x "$package" .; done

cat >values.c <<'C'
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  for (uint64_t i = 0; i < 1u << 20; ++i) {  /* every 4096th float, without infinities and NaN */
    uint32_t bits = (uint32_t)(i * 4096 + 1234);
    float x;
    memcpy(&x, &bits, sizeof x);
    if (!isfinite(x)) continue;
    float y = fabsf(x), f[] = {expf(x), logf(y), sinf(x), cosf(x), powf(y, 1.1f),
                               erff(x), tanhf(x), log1pf(y), expm1f(x)};
    double d[] = {exp(x), log(y), sin(x), cos(x), pow(y, 1.1), erf(x)};
    fwrite(f, sizeof f, 1, stdout);
    fwrite(d, sizeof d, 1, stdout);
  }
}
C

libraries="$folder/usr/x86_64-linux-gnu/lib"
on_amd64() { "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" ./amd64; }
on_arm64() { usr/bin/qemu-aarch64-static -L usr/aarch64-linux-gnu ./arm64; }
gcc -O1 -fno-builtin values.c -o amd64 -lm
LD_LIBRARY_PATH="$folder/usr/lib/$(gcc -print-multiarch)" usr/bin/aarch64-linux-gnu-gcc-12 \
  --sysroot="$folder" -Busr/bin/aarch64-linux-gnu- -O1 -fno-builtin values.c -o arm64 -lm
on_amd64 >amd64.bits
GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2 on_amd64 >without_fma.bits
on_arm64 >arm64.bits

cat >compare.py <<'PY'
import struct

FUNCTIONS = "expf logf sinf cosf powf erff tanhf log1pf expm1f exp log sin cos pow erf".split()
CASE = struct.Struct("=9I6Q")


def cases(name):
    return CASE.iter_unpack(open(name + ".bits", "rb").read())


others = {function: [0, 0] for function in FUNCTIONS}
for amd64, arm64, without_fma in zip(cases("amd64"), cases("arm64"), cases("without_fma"), strict=True):
    for function, x, y, z in zip(FUNCTIONS, amd64, arm64, without_fma):
        others[function][0] += x != y
        others[function][1] += x != z
for function, (arm64, without_fma) in others.items():
    print(f"{function:7} other bits on arm64 {arm64:6}, on amd64 without FMA {without_fma:6}")
PY
python3.11 compare.py | tee seen

diff - seen <<'TEXT' && echo "as recorded"
expf    other bits on arm64      0, on amd64 without FMA      0
logf    other bits on arm64      0, on amd64 without FMA      0
sinf    other bits on arm64      0, on amd64 without FMA      0
cosf    other bits on arm64      0, on amd64 without FMA      0
powf    other bits on arm64      0, on amd64 without FMA      0
erff    other bits on arm64  27256, on amd64 without FMA      0
tanhf   other bits on arm64     50, on amd64 without FMA      0
log1pf  other bits on arm64     36, on amd64 without FMA      0
expm1f  other bits on arm64     45, on amd64 without FMA      0
exp     other bits on arm64      0, on amd64 without FMA     43
log     other bits on arm64      0, on amd64 without FMA      0
sin     other bits on arm64      0, on amd64 without FMA    312
cos     other bits on arm64      0, on amd64 without FMA    334
pow     other bits on arm64      0, on amd64 without FMA    712
erf     other bits on arm64  35418, on amd64 without FMA      0
TEXT
