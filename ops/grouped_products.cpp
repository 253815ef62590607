// SPDX-License-Identifier: Apache-2.0
#include "ops/grouped_products.h"

#include <algorithm>
#include <cassert>
#include <span>
#include <tuple>
#include <utility>

#include "framework/autograd/engine.h"
#include "framework/autograd/tree_sum.h"
#include "framework/runtime/error.h"
#include "framework/runtime/parallel_for.h"
#include "framework/tensor/fill.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/matmul_kernel.h"

namespace moegrad::ops {
namespace {

// Each block of rows would pack the right operand again. From this many blocks on, the operand is
// packed once for all of them.
constexpr std::int64_t kPackOnceFrom = 4;
constexpr std::int64_t kPackOnceFromRows = (kPackOnceFrom - 1) * kernels::kBlockRows + 1;

template <class T>
struct Task {
  const kernels::MatmulProblem<T>* problem;
  std::int64_t i0, rows, j0, columns;

  std::int64_t size() const { return rows * columns * problem->k; }
};

// A task's part of C. If B is packed, each block of rows repeats the packing, so blocks are large,
// and largest if there are enough problems to give threads whole ones. If B is read in place,
// smaller blocks balance better. If there are too few blocks of rows, columns are cut as well.
constexpr std::int64_t kInPlaceRows = kernels::kBlockRows / 2;
constexpr std::int64_t kTaskColumns = 8 * kernels::kGroupColumns;
constexpr std::int64_t kManyProblems = 8;

// A cut by columns packs the left operand once more, so a single thread makes none.
std::int64_t fewest_tasks() {
  const auto threads = RankContext::current().pool().threads();
  return threads == 1 ? 1 : 2 * threads;
}

template <class T>
std::int64_t rows_of_blocks(kernels::RightForm form, std::int64_t k, std::int64_t problems) {
  if (kernels::is_read_in_place(form)) return kInPlaceRows;
  return problems < kManyProblems ? kernels::kBlockRows : kernels::most_block_rows<T>(k);
}

template <class T>
kernels::EvenCuts row_blocks(const kernels::MatmulProblem<T>& problem, std::int64_t problems) {
  return {problem.m, rows_of_blocks<T>(problem.b.form, problem.k, problems)};
}

template <class T>
std::int64_t columns_of_tasks(const std::vector<kernels::MatmulProblem<T>>& problems) {
  std::int64_t blocks = 0, columns = 0;
  for (const auto& problem : problems) {
    blocks += row_blocks(problem, std::ssize(problems)).count();
    columns = std::max(columns, problem.n);
  }
  const auto fewest = fewest_tasks();
  if (blocks == 0 || blocks >= fewest) return kTaskColumns;
  const auto share = columns * blocks / fewest;
  return std::clamp(round_up(share, kernels::kGroupColumns), kernels::kGroupColumns, kTaskColumns);
}

// The largest possible number of tasks, however the rows are distributed over the problems. With it
// every step asks for the same memory.
template <class T>
std::size_t most_tasks(const std::vector<kernels::MatmulProblem<T>>& problems) {
  std::int64_t rows = 0, columns = 0;
  for (const auto& problem : problems) {
    rows += problem.m;
    columns = std::max(columns, problem.n);
  }
  return static_cast<std::size_t>((rows / kInPlaceRows + std::ssize(problems)) *
                                      (columns / kTaskColumns + 1) +
                                  2 * fewest_tasks());
}

// Each task computes a block of C. Its bits are those of Note [Matmul order], whichever thread
// computes it. Long tasks come first, so that no thread is still busy with one at the end.
template <class T>
std::vector<Task<T>> cut(const std::vector<kernels::MatmulProblem<T>>& problems) {
  std::vector<Task<T>> tasks;
  tasks.reserve(most_tasks(problems));
  const auto width = columns_of_tasks(problems);
  for (const auto& problem : problems) {
    const auto blocks = row_blocks(problem, std::ssize(problems));
    for (std::int64_t i = 0; i < blocks.count(); ++i) {
      for (std::int64_t j0 = 0; j0 < problem.n; j0 += width) {
        tasks.push_back(
            {&problem, blocks.begin(i), blocks.length(i), j0, std::min(width, problem.n - j0)});
      }
    }
  }
  std::ranges::sort(tasks, {}, [](const Task<T>& task) {
    return std::tuple(-task.size(), task.problem, task.i0, task.j0);
  });
  return tasks;
}

template <class T>
void run_problems(const std::vector<kernels::MatmulProblem<T>>& problems) {
  const auto tasks = cut(problems);
  parallel_for(std::ssize(tasks), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto& task = tasks[static_cast<std::size_t>(i)];
      kernels::matmul_block(*task.problem, task.i0, task.rows, task.j0, task.columns);
    }
  });
}

// The right operand [k, n] as NZ, in `panels` of round_up(k, 16) * round_up(n, 16) elements.
template <class T>
kernels::RightOperand<T> packed(const kernels::RightOperand<T>& b, std::int64_t k, std::int64_t n,
                                T* panels) {
  const auto height = round_up(k, kNzBlock);
  parallel_for(n, kNzBlock, [&](std::int64_t j0, std::int64_t) {
    kernels::pack_right_panels(b, 0, k, j0, j0 + kNzBlock, n, panels + j0 * height);
  });
  return {.data = panels, .form = kernels::RightForm::kNz, .stride = height};
}

// Packs the operands for which that pays, one problem after the other, then computes all problems.
// `room` is the largest number of elements that all panels can take, however the rows are
// distributed over the experts. So every step asks the arena for the same memory.
template <class T>
void run_packed(std::vector<kernels::MatmulProblem<T>>& problems, std::int64_t room) {
  Tensor buffer;
  if (room > 0) {
    buffer = Tensor::empty({room}, dtype_of<T>);
    T* panels = buffer.mutable_data<T>().data();
    std::int64_t used = 0;
    for (auto& problem : problems) {
      if (kernels::is_read_in_place(problem.b.form) || problem.m < kPackOnceFromRows) continue;
      T* const at = panels + used;
      used += nz_numel(problem.k, problem.n);
      check(used <= room, "packed weights: need room for ", used, " elements, got ", room);
      problem.b = packed(problem.b, problem.k, problem.n, at);
    }
  }
  run_problems(problems);
}

// Counts the packing of one matrix, out of `matrices`, that multiplies `rows` rows.
template <class T>
void count_packing(const StoredMatrix& matrix, std::int64_t rows, std::int64_t matrices) {
  if (kernels::is_read_in_place(matrix.form)) return;
  const kernels::EvenCuts blocks(rows, rows_of_blocks<T>(matrix.form, matrix.k, matrices));
  const auto packings = rows < kPackOnceFromRows ? blocks.count() : 1;
  auto& counters = RankContext::current().counters();
  counters.packed_bytes.fetch_add(
      packings * matrix.k * round_up(matrix.n, kNzBlock) * size_of(matrix.tensor.dtype()),
      std::memory_order_relaxed);
  auto& counter =
      matrix.form == kernels::RightForm::kRows ? counters.packed_panels : counters.transposed_packs;
  counter.fetch_add(1, std::memory_order_relaxed);
}

template <class T>
kernels::RightOperand<T> right_operand(const StoredMatrix& matrix) {
  const auto& tensor = matrix.tensor;
  const T* data =
      tensor.layout() == Layout::kNZ ? tensor.nz_data<T>().data() : tensor.strided_data<T>();
  return {data + matrix.offset, matrix.form, matrix.stride};
}

void row_groups_into(const Tensor& x, const std::vector<StoredMatrix>& matrices,
                     const std::vector<std::int64_t>& offsets, Tensor& y) {
  assert(offsets.size() == matrices.size() + 1);
  const auto n = y.dim(1);
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>().data();
    T* to = y.mutable_data<T>().data();
    std::vector<kernels::MatmulProblem<T>> problems;
    problems.reserve(matrices.size());
    for (std::size_t e = 0; e < matrices.size(); ++e) {
      const auto begin = offsets[e];
      const auto rows = offsets[e + 1] - begin;
      const auto& matrix = matrices[e];
      assert(matrix.k == x.dim(1) && matrix.n == n);
      if (rows > 0 && n > 0) count_packing<T>(matrix, rows, std::ssize(matrices));
      problems.push_back({.a = {from + begin * matrix.k, matrix.k, 1},
                          .b = right_operand<T>(matrix),
                          .c = to + begin * n,
                          .c_stride = n,
                          .m = rows,
                          .n = n,
                          .k = matrix.k});
    }
    const auto not_in_place = std::ranges::count_if(
        matrices, [](const auto& matrix) { return !kernels::is_read_in_place(matrix.form); });
    const auto crowded = std::min<std::int64_t>(not_in_place, x.dim(0) / kPackOnceFromRows);
    run_packed(problems, crowded * nz_numel(x.dim(1), n));
  });
}

void column_groups_into(const Tensor& x, const Tensor& y, std::span<const RowRun> groups, bool adds,
                        Tensor& w) {
  const auto k = x.dim(1), n = y.dim(1);
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* left = x.data<T>().data();
    const T* right = y.data<T>().data();
    T* to = w.mutable_data<T>().data();
    std::vector<kernels::MatmulProblem<T>> problems;
    problems.reserve(groups.size());
    for (std::size_t e = 0; e < groups.size(); ++e) {
      const auto [first, count] = groups[e];
      problems.push_back({.a = {left + first * k, 1, k},
                          .b = {right + first * n, kernels::RightForm::kRows, n},
                          .c = to + static_cast<std::int64_t>(e) * k * n,
                          .c_stride = n,
                          .m = k,
                          .n = n,
                          .k = count,
                          .adds = adds});
    }
    // Each group's rows are padded to whole blocks.
    const auto height = round_up(x.dim(0) + (std::ssize(groups) - 1) * (kNzBlock - 1), kNzBlock);
    run_packed(problems, k < kPackOnceFromRows ? 0 : height * round_up(n, kNzBlock));
  });
}

}  // namespace

void check_blocks(std::string_view op, const Tensor& weight, std::int64_t experts) {
  if (weight.layout() != Layout::kNZ) return;
  const auto& blocks = weight.nz_blocks();
  const auto rows = weight.ndim() == 3 || experts == 0 ? weight.dim(-2) : weight.dim(0) / experts;
  check<LayoutError>((blocks == NzBlocks{experts, rows, weight.dim(-1)}), op, ": weight ",
                     weight.shape(), " must be FRACTAL_NZ blocks of that shape, got blocks of ",
                     Shape{blocks.batch, blocks.k, blocks.n});
}

std::vector<StoredMatrix> stored_matrices(const Tensor& weight, std::int64_t experts,
                                          bool transposed) {
  using kernels::RightForm;
  const bool nz = weight.layout() == Layout::kNZ;
  const auto n = weight.dim(-1);
  std::int64_t rows = 1;  // of all experts
  for (std::int64_t i = 0; i < weight.ndim() - 1; ++i) rows *= weight.dim(i);
  const auto k = experts == 0 ? 0 : rows / experts;
  assert(!nz || (weight.nz_blocks() == NzBlocks{experts, k, n}));

  StoredMatrix matrix{.tensor = weight};
  if (nz) {
    matrix.form = transposed ? RightForm::kNzTransposed : RightForm::kNz;
    matrix.stride = round_up(k, kNzBlock);
  } else {
    matrix.form = transposed ? RightForm::kColumns : RightForm::kRows;
    matrix.stride = n;
  }
  matrix.k = transposed ? n : k;
  matrix.n = transposed ? k : n;
  std::vector<StoredMatrix> matrices(static_cast<std::size_t>(experts), matrix);
  std::int64_t offset = 0;
  for (auto& each : matrices) {
    each.offset = offset;
    offset += nz ? nz_numel(k, n) : k * n;
  }
  return matrices;
}

Tensor multiply_row_groups(const Tensor& x, const std::vector<StoredMatrix>& matrices,
                           const std::vector<std::int64_t>& offsets, std::int64_t n) {
  Tensor y = Tensor::empty({x.dim(0), n}, x.dtype());
  row_groups_into(x, matrices, offsets, y);
  return y;
}

void multiply_rows(const Tensor& x, const StoredMatrix& matrix, Tensor& y) {
  row_groups_into(x, {matrix}, {0, x.dim(0)}, y);
}

Tensor multiply_column_groups(const Tensor& x, const Tensor& y,
                              const std::vector<std::int64_t>& offsets, const Shape& shape) {
  std::vector<RowRun> groups;
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    groups.push_back({offsets[e], offsets[e + 1] - offsets[e]});
  }
  Tensor w = Tensor::empty(shape, x.dtype());
  column_groups_into(x, y, groups, false, w);
  return w;
}

Tensor weight_gradient(const Function& function, std::size_t i, const Tensor& x, const Tensor& y,
                       const RowGroups& groups) {
  const auto& shape = function.edges()[i].shape;
  if (groups.sources() == 1) return multiply_column_groups(x, y, groups.offsets(), shape);
  const bool apart = keeps_sources(function, i);
  TreeSum sum;
  const auto runs = groups.runs();
  const auto experts = static_cast<std::size_t>(groups.experts());
  for (std::int64_t s = 0; s < groups.sources(); ++s) {
    Tensor term = [&] {
      const MemoryTagGuard tag(MemoryTag::kGradients);
      return Tensor::empty(shape, x.dtype());
    }();
    const auto begin = static_cast<std::size_t>(s) * experts;
    column_groups_into(x, y, std::span(runs).subspan(begin, experts), false, term);
    if (apart) {
      InputGradientSink(function, i)(
          std::move(term),
          {.source = static_cast<int>(s), .sources = static_cast<int>(groups.sources())});
    } else {
      sum.push(std::move(term));
    }
  }
  return sum.take();
}

void multiply_columns(const Tensor& x, const Tensor& y, bool adds, Tensor& w) {
  const RowRun all{0, x.dim(0)};
  column_groups_into(x, y, {&all, 1}, adds, w);
}

}  // namespace moegrad::ops
