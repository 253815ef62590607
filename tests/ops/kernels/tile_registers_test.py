# SPDX-License-Identifier: Apache-2.0
"""Checks in the disassembly that the innermost loops of float products keep their sums and operands in
registers: no vector is stored on the stack there, or loaded from it. Prints what the largest tile does.

usage: tile_registers_test.py OBJDUMP OBJECT..."""
import os
import re
import subprocess
import sys

FUNCTION = re.compile(r"::(multiply_vectors|multiply_stored_rows|multiply_row_group|add_steps)<float, ")
MULTIPLY_ADD = re.compile(r"\t(vfmadd|fmla)")
BRANCH = re.compile(r"\t(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s.*?\b([0-9a-f]+) <")
# At a fixed place: sums that wait for others lie in an array.
ON_STACK = re.compile(r"[xyz]mm\d+.*\(%r[sb]p\)|\(%r[sb]p\).*[xyz]mm\d+|\t\w+\s+q\d+,.*\[(sp|x29)(, #|\])")


def functions(disassembly):
    """(name, [(address, instruction)])"""
    for text in disassembly.split("\n\n"):
        head = re.match(r"\s*[0-9a-f]+ <(.*)>:\n", text)
        if head:
            yield head[1], [(int(address, 16), line) for address, line in
                            re.findall(r"^\s+([0-9a-f]+):(\t.*)$", text, re.MULTILINE)]


def innermost_loops(instructions):
    """Loops that contain no other and multiply."""
    loops = []
    for address, line in instructions:
        branch = BRANCH.search(line)
        if branch and int(branch[1], 16) <= address:
            loops.append((int(branch[1], 16), address))
    for first, last in loops:
        if any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops):
            continue
        body = [line for address, line in instructions if first <= address <= last]
        if any(MULTIPLY_ADD.search(line) for line in body):
            yield body


def problems(name, instructions):
    for body in innermost_loops(instructions):
        spills = [line.strip() for line in body if ON_STACK.search(line)]
        if spills:
            yield f"{name}: {len(spills)} vectors on the stack in a loop of {len(body)}, such as {spills[0]}"


def self_test():
    for spill in ("vmovaps %ymm3,0x20(%rsp)", "vfmadd231ps 0x20(%rsp),%ymm1,%ymm2", "str\tq3, [sp, #32]",
                  "ldr\tq3, [sp, #32]"):
        code = [(0, "\tvfmadd231ps %ymm1,%ymm2,%ymm3"), (4, "\t" + spill), (8, "\tjne    0 <f>")]
        assert len(list(problems("f", code))) == 1, spill
        assert not list(problems("f", [code[0], code[2]]))
        assert not list(problems("f", [*code[::2], (12, code[1][1])])), "after the loop"
    arm = [(0, "\tfmla\tv1.4s, v2.4s, v3.4s"), (4, "\tstp\tq3, q4, [sp, #32]"), (8, "\tb.ne\t0 <f>")]
    assert len(list(problems("f", arm))) == 1


def main():
    self_test()
    objdump, *objects = sys.argv[1:]
    objects = [path for path in objects if re.search(r"product_loops(_avx512)?\.cpp\.o$", path)]
    found, seen = [], 0
    for path in objects:
        disassembly = subprocess.run([objdump, "-d", "-C", "--no-show-raw-insn", path], check=True,
                                     capture_output=True, text=True).stdout
        for name, instructions in functions(disassembly):
            if not FUNCTION.search(name):
                continue
            for body in innermost_loops(instructions):
                seen += 1
                count = sum(bool(MULTIPLY_ADD.search(line)) for line in body)
                if re.search(r"multiply_vectors<float, .*, (6, 0, 2|8, 0, 3)>", name) and count > 40:
                    print(f"{os.path.basename(path)}: {name.split('(')[0]}: {count} multiply-adds of"
                          f" {len(body)} instructions")
            found += problems(name.split("(")[0], instructions)
    assert seen > 30, f"only {seen} loops with multiply-adds found in {objects}"
    print("\n".join(found) or f"tile_registers_test: {seen} loops ok")
    return bool(found)


sys.exit(main())
