# SPDX-License-Identifier: Apache-2.0
"""Checks that no folder of sources grows unnoticed: each has a budget of lines, and what is saved stays saved."""
import sys
import tempfile
from pathlib import Path

from repository_files import repository_files

# The most lines of .h and .cpp files, and what they are for. A number that rises has its reason beside it.
BUDGETS = {
    # For clang 14, which takes no structured binding into a lambda, some folders have up to four more.
    # 58 more for records as bytes, whose members are named once: readers of messages are 150 shorter. 34 for
    # CRC and the check of the CPU on arm64, 6 by which a program has it, 3 for MPICH's mpirun, 3 for names by
    # clang 19, 978 for elementary functions. 222 more for kernels that are listed, measured and chosen.
    # 7 for the policy of what is made again, 34 for what a budget of memory says, 21 for what
    # refers to others, from nn.
    # 55 for threads that are scheduled promptly, 4 for what is swapped, 15 for a rank's other threads.
    "framework/runtime": (4275, "a rank's threads and memory, spans, random numbers, elementary functions, errors, log"),
    "framework/profile": (534, "traces, overlap, slow ranks"),
    # 75 for FRACTAL_NZ of bfloat16, 23 for conversions on all threads, 12 for doubles that are rounded once, 41 for
    # int32 and int8.
    # 11 for where bytes come from.
    "framework/tensor": (2316, "tensor, storage, layouts"),
    # 330 more than the two backends had: checks of links, tags, overlaps and of what a consumer drops (116), a link
    # that is shared (192), what threads do last (75), and a wire over any messages, which a test proves.
    # 57 for names of groups, 11 for experts on ranks that divide matrices, 7 for sums of int32. 126 for bytes and
    # waiting of each group, and for the axes that a group is of. 3 for what a group divides already. 1 for when
    # messages are staged.
    "framework/distributed": (9230, "one engine; ranks as threads, as processes, or on another transport"),
    # 217 more for the uses of a tied weight, which are summed apart. 21 for gradients of bfloat16.
    # 380 for results that are made again: policies, recipes, how an op runs again. 650 for tensors that are swapped:
    # the queue that copies (190), the space and its window (330), policies. 22 for copies that give way
    # and edits of what is back.
    "framework/autograd": (6147, "tape, engine, hooks, sums of gradients, recomputation, gradcheck, graph view"),
    # 7 for int32 and int8. 12 for who holds a caller's tensors while they are saved.
    "framework/io": (4537, "safetensors, checkpoints, strict JSON, printing"),
    # 522 more for sums by halving: the rule (149), sums that wait (119), embeddings (70), and what each kernel adds.
    # 187 for NEON and what transposes take from a vector, which every kind of CPU now has. 1085 for products of
    # bfloat16: four kernels (460), a fifth for arm64 (190), packing (130), blocks (220), what they need of vectors.
    # 313 for their packed forms: blocks from a wire or shards and back (221), from the transpose, once for all rows.
    # 400 for what ops compute with bfloat16: products (90), norms and elementwise (200), attention, rows and copies.
    # 1083 for tensor parallelism: four ways between ranks (150), linear layers and their tiles (400), embedding and
    # losses, mm_all_reduce (210). 332 for products of int8, a bias of npu_grouped_matmul, operations of divided rows.
    # 20 for what may not run again, and a shorter way to a norm. 200 for gradients of the head that forward makes, and
    # for weights, smoothing and z-loss of tokens.
    # 140 for attention's windows, masks and dropout in tiles.
    "ops": (18330, "each op with its backward; kernels for two vector widths, AVX and NEON"),
    # 19 more for the quantiles of a cut normal distribution, whose ends are computed once. 95 for layers in bfloat16.
    # 93 for layers whose weight ranks divide, 2 for what a deep copy must come before.
    # 35 for policies of modules. 40 for patterns of paths, which are moved here.
    "nn": (4430, "module, layers, mixture of experts"),
    # 2 for what to call where a parameter is bfloat16.
    "optim": (3308, "optimizers, schedules, clipping"),
    # 120 for weights that are gathered in bfloat16, in the form that forward or backward reads. 13 for calls that
    # compute in different dtypes.
    "fsdp": (3651, "fully_shard, and who runs which micro-batch"),
    # 834 for tensor parallelism: styles, parts, sums of gradients, what is not to the bit.
    "parallel": (1446, "experts, and matrices, on several ranks"),
    # 8 for sizes that a schedule does not have, 12 for sums of bytes and times, 24 for pairs in turn and bounds.
    "plan": (2347, "pipeline schedules: actions, generators, passes, check, simulation"),
    # 62 for losses over parts of the tokens, 23 for weights of targets.
    "models": (4045, "one decoder, a table per family, Hugging Face's files"),
    # 242 for tensor parallelism: the plan, its options and what they must divide. 106 for bytes and waiting by axis.
    # 96 for the named sets of what is made again, 99 for a budget of memory. 167 for what a target counts: weights of
    # documents, and masks. 380 for what layers keep, make again and swap, and its figures.
    "train": (9170, "options, data, step, checkpoints, logs"),
    # 168 for tensor parallelism in loss_parity and check_golden. 41 for bytes and waiting by axis in the report, 20 for
    # those of swap. 224 for plans of memory in loss_parity. 520 for schedules: the program (210), their pictures (230),
    # their figures, 41 for outputs that are opened first and options that fit.
    "tools": (10181, "thirteen programs; check_golden and the report are half of it"),
}
SLACK = 0.03  # a folder may be this far below its budget
SUFFIXES = {".cpp", ".h"}


def folder_of(file):
    return "/".join(file.parts[:2 if file.parts[0] == "framework" else 1])


def lines_of_folders(root, tops):
    lines = {}
    for file in repository_files(root, sorted(tops)):
        if file.parts[0] in tops and file.suffix in SUFFIXES:
            with (root / file).open("rb") as text:
                lines[folder_of(file)] = lines.get(folder_of(file), 0) + sum(1 for _ in text)
    return lines


def problems(root, budgets):
    lines = lines_of_folders(root, {folder.split("/")[0] for folder in budgets})
    for folder in sorted(lines.keys() - budgets.keys()):
        yield f"{folder}: has {lines[folder]} lines and no budget; give it one in tests/size_test.py"
    for folder, (most, _) in budgets.items():
        now = lines.get(folder, 0)
        if now > most:
            yield f"{folder}: must have at most {most} lines, got {now}; remove some, or raise the number in " \
                  "tests/size_test.py and write the reason beside it"
        elif now < (1 - SLACK) * most:
            yield f"{folder}: has {now} lines, more than {SLACK:.0%} below its budget of {most}; lower the number " \
                  f"in tests/size_test.py to {now}"


def self_test():
    """Plants folders within their budget, above it, below it and without one."""
    planted = {"framework/a/a.h": 60, "framework/a/b/a.cpp": 40, "framework/b/a.cpp": 101, "framework/c/a.cpp": 97,
               "framework/d/a.cpp": 96, "framework/e/a.h": 1, "ops/a.h": 50, "ops/kernels/a.cpp": 50,
               "ops/CMakeLists.txt": 9, "tests/a.cpp": 500}
    budgets = {folder: (100, "") for folder in ["framework/a", "framework/b", "framework/c", "framework/d", "ops"]}
    with tempfile.TemporaryDirectory() as tmp:
        for name, lines in planted.items():
            (Path(tmp) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(tmp) / name).write_text("x\n" * lines, encoding="utf-8")
        found = list(problems(Path(tmp), budgets))
    assert [problem.split(":")[0] for problem in found] == ["framework/e", "framework/b", "framework/d"], found
    assert "at most 100 lines, got 101" in found[1] and "to 96" in found[2], found


self_test()
found = list(problems(Path(__file__).resolve().parent.parent, BUDGETS))
print("\n".join(found) or "size_test: ok")
sys.exit(bool(found))
