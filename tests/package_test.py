# SPDX-License-Identifier: Apache-2.0
"""Installs a build tree, moves what was installed, and builds a user's project on it.

usage: package_test.py BUILD_FOLDER COMPILER [CPU_CHECK_SYMBOL]
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

from repository_files import repository_files

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["framework", "ops", "nn", "optim", "fsdp", "parallel", "plan", "models", "train"]
TIERS = ["moegrad.h", "moegrad_diagnostics.h", "moegrad_mpi.h", "moegrad_testing.h"]
UMBRELLAS = {*TIERS, "train/train.h"}
# What the umbrellas leave out: the first two need a library that the user may not have.
OPT_IN = {"framework/autograd/gradcheck_gtest.h", "framework/tensor/as_eigen.h",
          "ops/compat/npu_grouped_matmul.h"}
FOR_PROGRAMS = ["GTest", "benchmark"]  # the tests
FOR_BUILDING = ["Eigen3", "Boost", "nlohmann_json", "CLI11"]  # the libraries
BUILD_FLAGS = ["-W", "-march", "-ffp-contract", "lld", "-O", "-g1"]
UMBRELLA_MEGABYTES = 320
LOOP_LINES = 30
CHECKOUT = re.compile(rb"(?<![\w./-])/[\w./-]+(?=/framework/(?:runtime|tensor))")
QUOTED = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
OUTPUT = {
    "consumer": "gradient of signed_square agrees\n"
                "two sharded ranks: the loss falls\n"
                "one rank, weights from the file: the same loss\n",
    "everyday": "tensor([[1.0000, 2.0000],\n"
                "        [3.0000, 4.5000]], shape=[2, 2], dtype=float32, layout=ND)\n"
                "tensor([3.0000, 4.5000], shape=[2], dtype=float32, layout=ND)\n"
                "2\nthe loss falls\nthe gradient of cube agrees\n",
    "first": "dloss/dweight = -17\n"
             "tensor([[2.0000]], shape=[1, 1], dtype=float32, layout=ND, requires_grad=True)\n"
             "tensor([1.0000], shape=[1], dtype=float32, layout=ND, requires_grad=True)\n",
    "one_op": "rms_norm -3\n",
    "over_mpi": "sum over 2 ranks: 3\n",
}


def run(*command):
    """stdout of a command; a failure is the end, with all that it said."""
    done = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def path_problems(prefix, paths):
    """A compiler cache may bring in what another checkout compiled, whose path nobody knows here."""
    for file in sorted(path for path in prefix.rglob("*") if path.is_file()):
        contents = file.read_bytes()
        found = {os.fsdecode(path) for path in CHECKOUT.findall(contents)}
        begins, ends = rb"(?:-I|(?<![\w./-]))", rb"(?!\.?[\w-])"  # /src is not in Eigen/src, nor in /src.cmake
        found |= {str(path) for path in paths
                  if re.search(begins + re.escape(os.fsencode(path)) + ends, contents)}
        for path in sorted(found):
            yield f"{file.relative_to(prefix)}: contains {path}"


def reached(include, headers):
    """The installed ones among `headers` and all that they include, and those not installed."""
    found, absent, queue = set(), set(), [(header, "the test") for header in headers]
    while queue:
        header, source = queue.pop()
        if not (include / header).is_file():
            absent.add((header, source))
        elif header not in found:
            found.add(header)
            text = (include / header).read_text(encoding="utf-8")
            queue += [(target, header) for target in QUOTED.findall(text)]
    return found, absent


def header_problems(include):
    public, absent = reached(include, UMBRELLAS | OPT_IN)
    for header, source in sorted(absent):
        yield f"{header}: is not installed, and {source} needs it"
    for path in sorted(path for path in include.rglob("*") if path.is_file()):
        header = path.relative_to(include).as_posix()
        if header not in public:
            yield (f"{header}: is installed, but no umbrella reaches it; include it in one, or list "
                   f"it as INTERNAL in {header.split('/')[0]}/CMakeLists.txt")
    yield from tier_problems(include)


def tier_problems(include):
    """A header is named in one tier. What only tests use costs no program anything."""
    named = {tier: set(QUOTED.findall((include / tier).read_text(encoding="utf-8")))
             for tier in TIERS}
    for first, second in combinations(TIERS, 2):
        for header in sorted(named[first] & named[second]):
            yield f"{header}: is named in both {first} and {second}"
    program, _ = reached(include, ["moegrad.h"])
    for header in sorted(program & named["moegrad_testing.h"]):
        yield f"{header}: moegrad.h reaches it, though it is for tests"


def remove_strays(include, known):
    """Headers that the user keeps in his checkout are installed with the repository's."""
    for path in [path for path in include.rglob("*") if path.is_file()]:
        if path.relative_to(include) not in known:
            path.unlink()


def self_test():
    with tempfile.TemporaryDirectory() as tmp:
        planted = {"moegrad.h": '#include "a/b.h"\n#include "a/none.h"\n',
                   "moegrad_diagnostics.h": '#include "a/c.h"\n#include "a/b.h"\n',
                   "moegrad_mpi.h": "", "moegrad_testing.h": '#include "a/d.h"\n', "a/b.h": '#include "a/d.h"\n',
                   "a/c.h": "", "a/d.h": "", "a/stray.h": "", "train/train.h": "",
                   **dict.fromkeys(OPT_IN, '#include "moegrad.h"\n')}
        for name, text in planted.items():
            (Path(tmp) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(tmp) / name).write_text(text, encoding="utf-8")
        found = [problem.split(":")[0] for problem in header_problems(Path(tmp))]
        assert found == ["a/none.h", "a/stray.h", "a/b.h", "a/d.h"], found
        (Path(tmp) / "a/lib.a").write_text("x\0/home/a-b/c/framework/tensor\0../../framework/tensor\0"
                                           "b/src\0/srcs\0/src.a\0-I/usr/src\0",
                                           encoding="utf-8")
        found = list(path_problems(Path(tmp), ["a/none.h", "/src", "/usr"]))
        assert found == ["a/lib.a: contains /home/a-b/c", "a/lib.a: contains /usr",
                         "moegrad.h: contains a/none.h"], found
        known = {Path(name) for name in planted if name not in OPT_IN and name != "a/stray.h"}
        remove_strays(Path(tmp), known)
        found = [problem.split(":")[0] for problem in header_problems(Path(tmp))]
        assert found == [*sorted(OPT_IN | {"a/none.h"}), "a/b.h", "a/d.h"], found


def config_problems(package):
    text = "".join(path.read_text(encoding="utf-8") for path in package.glob("*.cmake"))
    text = re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE)
    for flag in BUILD_FLAGS:
        if re.search(rf"(?<![\w-]){flag}", text):
            yield f"{package.name}: hands the user {flag}"


def compile_alone(include, compiler):
    """Each header by itself, since a precompiled header may hide what it lacks."""
    headers, _ = reached(include, UMBRELLAS | {"ops/compat/npu_grouped_matmul.h"})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda header: run(compiler, "-std=c++20", "-fsyntax-only", "-I", include,
                                         "-include", header, "-x", "c++", os.devnull), sorted(headers)))


def compile_with_gtest(include, compiler):
    """A user's test that says `using namespace moegrad`, if a GoogleTest is there."""
    has_gtest = subprocess.run([compiler, "-E", "-include", "gtest/gtest.h", "-x", "c++", os.devnull],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if has_gtest.returncode == 0:
        run(compiler, "-std=c++20", "-fsyntax-only", "-I", include,
            ROOT / "tests/consumer/own_test.cpp")


def umbrella_problems(include, compiler, folder):
    """What including moegrad.h costs the compiler; the time is not for a test to judge."""
    process = subprocess.Popen([compiler, "-std=c++20", "-O2", "-I", include, "-include",
                                "moegrad.h", "-x", "c++", "-c", os.devnull, "-o", folder / "x.o"])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        yield "moegrad.h: does not compile alone"
    if usage.ru_maxrss > 1024 * UMBRELLA_MEGABYTES:
        yield f"moegrad.h: takes {usage.ru_maxrss // 1024} MB, more than {UMBRELLA_MEGABYTES}"


def configure(source, build, compiler, without, *options):
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "--no-warn-unused-cli",
        f"-DCMAKE_CXX_COMPILER={compiler}", *options,
        *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in without))


def consumer_problems(prefix, build, compiler, cpu_check, folder):
    project = ROOT / "tests/consumer"
    configure(project, folder, compiler, FOR_PROGRAMS + FOR_BUILDING,
              f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", folder)
    for name, expected in OUTPUT.items():
        got = run(folder / name, *([folder / "w.safetensors"] if name == "consumer" else []))
        if got != expected:
            yield f"{name}: expected\n{expected}got\n{got}"
        if cpu_check and f" {cpu_check}\n" not in run("nm", folder / name):
            yield f"{name}: {cpu_check} is not linked into it"
    text = folder / "text.txt"
    text.write_text("".join(f"{i} sheep went to the water and came back.\n" for i in range(200)))
    yield from training_problems(folder, text)
    yield from loop_problems(folder, text, build / "tools/train")
    yield from expert_problems(folder)
    yield from documentation_problems(project)


def training_problems(folder, text):
    """A user's training program has the same bits on 1, 2 and 4 ranks, also when it is stopped and
    goes on with another number of them."""
    whole = run(folder / "train", text, folder / "whole", 1, 16)
    lines = whole.splitlines()[-17:]
    losses = [float.fromhex(line.split()[1]) for line in lines]
    if len(set(lines)) != 17 or not losses[15] < 0.8 * losses[0]:
        yield f"train: expected 16 falling losses, got\n{whole}"
    for ranks, later in [(2, 4), (4, 2)]:
        got = run(folder / "train", text, folder / f"on {ranks}", ranks, 16).splitlines()
        if got[-17:] != lines:
            yield f"train: {ranks} ranks: expected the losses of one\n{got}"
        run(folder / "train", text, folder / f"in parts {ranks}", ranks, 8)
        got = run(folder / "train", text, folder / f"in parts {ranks}", later, 16).splitlines()
        if got[-9:] != lines[-9:] or len(got) != 9:
            yield f"train: resumed on {later} ranks: expected the same losses\n{got}"


def recorded_steps(program, text, ranks, ep, metrics):
    """What the program `train` records: the loss and the norm of the gradients of each step."""
    run(program, "--text", text, "--preset", "tiny", "--steps", 10, "--warmup", 2, "--micro-batches", 4, "--batch", 2,
        "--seq-len", 32, "--sample-bytes", 0, "--world-size", ranks, "--expert-parallel", ep, "--metrics", metrics)
    records = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    return {record["step"]: (record["loss"], record["grad_norm"]) for record in records if "loss" in record}


def lines_of_loop():
    """How many lines of code the function train() of loop.cpp has between its braces."""
    code = (ROOT / "tests/consumer/loop.cpp").read_text(encoding="utf-8")
    body, = re.findall(r"^void train\([^{]*\{\n(.*?)^\}", code, re.MULTILINE | re.DOTALL)
    return len(re.findall(r"^ *(?!//)[^ \n]", body, re.MULTILINE))


def loop_problems(folder, text, program):
    """A user's loop of few lines has the bits of the program `train` wherever the ranks and the experts are, also
    when it is stopped and goes on with others."""
    if lines_of_loop() > LOOP_LINES:
        yield f"loop.cpp: train() must have at most {LOOP_LINES} lines, got {lines_of_loop()}"
    for here, later in [((1, 1), (4, 2)), ((2, 1), (2, 2)), ((2, 2), (1, 1)), ((4, 1), (2, 1)), ((4, 2), (4, 1))]:
        recorded = recorded_steps(program, text, *here, folder / f"{here}.jsonl")
        if len(set(recorded.values())) != 10:
            yield f"train: expected 10 different steps, got\n{recorded}"
        for (ranks, ep), first, until in [(here, 0, 6), (later, 4, 10)]:
            lines = run(folder / "loop", text, folder / f"loop {here}", ranks, ep, until).splitlines()
            got = {int(step): (float.fromhex(loss), float.fromhex(norm)) for step, loss, norm in map(str.split, lines)}
            expected = {step: recorded[step] for step in range(first, until)}
            if got != expected:
                yield f"loop: {ranks} ranks, experts on {ep}: expected what train records\n{expected}\ngot\n{got}"


def readme_problems(build, cpu_check, folder):
    """README's own line builds its program, without a word of compiler or linker."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    line, = re.findall(r"^g\+\+ .*", text, re.MULTILINE)
    first = folder / "first.cpp"
    first.write_bytes((ROOT / "examples/linear_regression.cpp").read_bytes())
    words = [word.replace("build/release", str(build)) for word in line.split()]
    words = [str({"first.cpp": first, "first": folder / "first_of_readme"}.get(word, word)) for word in words]
    done = subprocess.run(" ".join(words), shell=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode or done.stdout:
        yield f"README.md: {line}: exit status {done.returncode}\n{done.stdout}"
    elif run(folder / "first_of_readme") != OUTPUT["first"]:
        yield "README.md: its program prints something else"
    elif cpu_check and f" {cpu_check}\n" not in run("nm", folder / "first_of_readme"):
        yield f"README.md: {cpu_check} is not linked into its program"


def expert_problems(folder):
    """A user's loop has the same gradient norms wherever the experts are."""
    norms = run(folder / "experts", 1, 1)
    if len(set(norms.split())) != 4:
        yield f"experts: expected four norms, got\n{norms}"
    for ranks, ep in [(2, 2), (4, 2), (4, 4)]:
        got = run(folder / "experts", ranks, ep)
        if got != norms:
            yield f"experts: {ep} of {ranks} ranks: expected\n{norms}got\n{got}"


def documentation_problems(project):
    """What the documentation prints for a user's project is what this test builds."""
    def unindented(text):
        return re.sub(r"^ +", "", text, flags=re.MULTILINE)

    for page, language, file in [("docs/install.md", "cmake", "CMakeLists.txt"),
                                 ("README.md", "cpp", "../../examples/linear_regression.cpp"),
                                 ("docs/training.md", "cpp", "train.cpp"),
                                 ("docs/training.md", "cmake", "CMakeLists.txt"),
                                 ("docs/fully_shard.md", "cpp", "loop.cpp"),
                                 ("docs/expert_parallelism.md", "cpp", "experts.cpp")]:
        text = (ROOT / page).read_text(encoding="utf-8")
        block = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
        code = (project / file).read_text(encoding="utf-8")
        if not block or unindented(block[1]) not in unindented(code):
            yield f"{page}: its {language} block is not in {file}"


def add_as_subdirectory(compiler, folder):
    """Configured only: it would compile the libraries once more."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.25)
project(outer LANGUAGES CXX)
add_subdirectory({ROOT} moegrad)
add_executable(outer {ROOT}/tests/consumer/consumer.cpp)
target_link_libraries(outer PRIVATE moegrad::moegrad)
if(CMAKE_BUILD_TYPE OR TARGET train)
  message(FATAL_ERROR "moegrad changes its user's build")
endif()
""", encoding="utf-8")
    configure(folder, folder / "build", compiler, FOR_PROGRAMS)


def flag_problems(compiler, folder):
    """Flags that change what arithmetic gives."""
    for flag in ("-ffast-math", "-O3 -Ofast", "-mfpmath=387 -O2"):
        command = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
                   f"-DCMAKE_CXX_FLAGS={flag}"]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode == 0 or "moegrad must be built without -" not in done.stderr:
            yield f"{flag} is not refused: {done.stderr}"


def problems(build, compiler, cpu_check, tmp):
    run("cmake", "--install", build, "--prefix", tmp / "made")
    prefix = (tmp / "made").rename(tmp / "moved")
    include = prefix / "include/moegrad"
    remove_strays(include, set(repository_files(ROOT, [*FOLDERS, *TIERS])))
    yield from path_problems(prefix, [ROOT, build, tmp / "made"])
    yield from header_problems(include)
    yield from config_problems(next(prefix.glob("lib*/**/cmake/moegrad")))
    yield from umbrella_problems(include, compiler, tmp)
    if os.environ.get("MOEGRAD_FULL") == "1":
        compile_alone(include, compiler)
    compile_with_gtest(include, compiler)
    yield from consumer_problems(prefix, build, compiler, cpu_check, tmp / "consumer")
    yield from readme_problems(build, cpu_check, tmp)
    add_as_subdirectory(compiler, tmp / "outer")
    yield from flag_problems(compiler, tmp / "flags")


self_test()
build_folder, cxx, *symbol = sys.argv[1:]
with tempfile.TemporaryDirectory() as temporary:
    failed = False
    for problem in problems(Path(build_folder).resolve(), cxx, "".join(symbol), Path(temporary)):
        print(problem, flush=True)
        failed = True
print("package_test: failed" if failed else "package_test: ok")
sys.exit(failed)
