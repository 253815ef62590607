# SPDX-License-Identifier: Apache-2.0
"""Checks that no function compiled for AVX-512 can replace one that other files define as well, and that no
other file has its instructions: Note [Two vector widths]. What runs before the check of the CPU must have no
instruction of x86-64-v3 either: Note [CPU check]. Usage: avx512_symbols_test.py OBJECT..."""
import os
import re
import subprocess
import sys

WIDE = "3VecIfLi64EE"  # Vec<float, 64> in a mangled name
REFERENCE = "DW.ref."  # what holds the address of a function of the C++ runtime, for exceptions
FOR_EVERY_CPU = {"cpu_check.cpp.o", "ignored_signals.cpp.o"}
FOR_AVX512 = {"amx.cpp.o", "avx512.cpp.o", "avx512_bf16.cpp.o", "fma_chains_avx512.cpp.o", "product_loops_avx512.cpp.o"}
MEASURES_IT = "cpu_kernels.cpp.o"  # in assembly, where the CPU has it
# AVX-512 by its registers; what x86-64-v3 adds by its instructions.
AVX512 = re.compile(r"%zmm|%[xy]mm(1[6-9]|[23]\d)|%k[0-7]")
NEWER = re.compile(r"\t(v[a-z]\w+|lzcnt|tzcnt|popcnt|movbe|andn|bextr|bls\w+|bzhi|mulx|pdep|pext|rorx|s[ahr][lr]x)\s")


def merged_elsewhere(symbols):
    """The symbols in the output of nm that the linker merges by name and that others may define."""
    for line in symbols.splitlines():
        kind, name = line.split()[-2:]
        if kind in "WVu" and WIDE not in name and not name.startswith(REFERENCE):
            yield name


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    planted = ("0000 W _ZSt3minIlERKT_S2_S2_\n0000 W _Z4turnN3VecIfLi64EEE\n0000 T _Z1fv\n     U _Z1gv\n"
               "0000 V DW.ref.__gxx_personality_v0")
    assert list(merged_elsewhere(planted)) == ["_ZSt3minIlERKT_S2_S2_"]
    objects = [path for path in sys.argv[1:] if os.path.basename(path) in FOR_AVX512]
    assert len(objects) == len(FOR_AVX512), f"these must be files for AVX-512: {FOR_AVX512}, got {objects}"
    wrong = 0
    for line in ("vpxor  %xmm0,%xmm0,%xmm0", "shlx   %eax,%edx,%edx", "lzcnt  %eax,%eax"):
        assert NEWER.search("\t" + line), line
    for line in ("xgetbv", "cpuid", "shl    $0x3,%eax", "bt     %eax,%edx"):
        assert not NEWER.search("\t" + line), line
    first = [path for path in sys.argv[1:] if os.path.basename(path) in FOR_EVERY_CPU]
    assert len(first) == len(FOR_EVERY_CPU), f"these must run on every CPU: {FOR_EVERY_CPU}, got {first}"
    for path in sys.argv[1:]:
        forbidden = NEWER if path in first else AVX512
        found = forbidden.search(output("objdump", "--disassemble", "--no-show-raw-insn", path))
        if found and path not in objects and os.path.basename(path) != MEASURES_IT:
            print(f"{path} has an instruction that not every CPU of a release build has: {found[0].strip()}")
            wrong = 1
    for path in objects:
        assert "%zmm" in output("objdump", "--disassemble", path), f"{path} has no function for AVX-512"
        for name in merged_elsewhere(output("nm", "--defined-only", path)):
            print(f"{path} defines {name}, which another file may define for any CPU")
            wrong = 1
    return wrong


sys.exit(main())
