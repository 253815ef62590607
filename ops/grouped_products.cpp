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
#include "ops/kernels/bf16/kernels.h"
#include "ops/kernels/bf16/product.h"
#include "ops/kernels/even_cuts.h"
#include "ops/kernels/matmul_kernel.h"

namespace moegrad::ops {
namespace {

using kernels::RightForm;

template <class Kind>
using ProblemsOf = std::vector<typename Kind::Problem>;

// Products of float32 or float64 (Note [Matmul order]).
template <class T>
struct FloatProducts {
  using Element = T;
  using Problem = kernels::MatmulProblem<T>;

  // Each block of rows would pack the right operand again. From this many rows on, the operand is
  // packed once for all of them.
  static constexpr std::int64_t kPackOnceFromRows = 3 * kernels::kBlockRows + 1;
  static constexpr std::int64_t kInPlaceRows = kernels::kBlockRows / 2;
  static constexpr std::int64_t kTaskColumns = 8 * kernels::kGroupColumns;

  static bool is_read_in_place(RightForm form) { return kernels::is_read_in_place(form); }
  static std::int64_t panel_rows(std::int64_t k) { return round_up(k, kNzBlock); }
  static std::int64_t most_block_rows(std::int64_t k) { return kernels::most_block_rows<T>(k); }
  static void give(Problem& problem, Tensor& result, std::int64_t offset) {
    problem.c = result.mutable_data<T>().data() + offset;
  }
  void run(const Problem& problem, std::int64_t i0, std::int64_t rows, std::int64_t j0,
           std::int64_t columns) const {
    kernels::matmul_block(problem, i0, rows, j0, columns);
  }
  void pack(const kernels::RightOperand<T>& b, std::int64_t k, std::int64_t n, std::int64_t j0,
            std::int64_t j_end, T* panels) const {
    kernels::pack_right_panels(b, 0, k, j0, j_end, n, panels + j0 * panel_rows(k));
  }
};

// Products of bfloat16 (Note [bfloat16 products]), whose results are float32, or bfloat16 where
// they are rounded.
struct Bf16Products {
  using Element = BFloat16;
  using Problem = kernels::bf16::Problem;

  static constexpr std::int64_t kPackOnceFromRows = 2 * kernels::bf16::kBlockRows + 1;
  static constexpr std::int64_t kInPlaceRows = kernels::bf16::kBlockRows / 2;
  static constexpr std::int64_t kTaskColumns = kernels::bf16::kBlockColumns;

  const kernels::bf16::Loops& loops = kernels::bf16::loops_of(RankContext::current_kernels());

  static bool is_read_in_place(RightForm form) { return form == RightForm::kNz; }
  static std::int64_t panel_rows(std::int64_t k) { return round_up(k, kNzUnit); }
  static std::int64_t most_block_rows(std::int64_t /*k*/) { return kernels::bf16::kBlockRows; }
  static void give(Problem& problem, Tensor& result, std::int64_t offset) {
    if (result.dtype() == Dtype::kBFloat16) {
      problem.rounded_c = result.mutable_data<BFloat16>().data() + offset;
    } else {
      problem.c = result.mutable_data<float>().data() + offset;
    }
  }
  void run(const Problem& problem, std::int64_t i0, std::int64_t rows, std::int64_t j0,
           std::int64_t columns) const {
    kernels::bf16::multiply_block(problem, i0, rows, j0, columns, loops);
  }
  void pack(const kernels::RightOperand<BFloat16>& b, std::int64_t k, std::int64_t n,
            std::int64_t j0, std::int64_t j_end, BFloat16* panels) const {
    kernels::bf16::pack_right(b, k, n, j0, std::min(j_end, n), loops.order,
                              reinterpret_cast<std::byte*>(panels));
  }
};

// Calls body(kind) with the products of operands of this dtype.
template <class Body>
void dispatch_products(Dtype dtype, const Body& body) {
  if (dtype == Dtype::kBFloat16) return body(Bf16Products());
  dispatch_floating(dtype, [&]<class T>() { body(FloatProducts<T>()); });
}

template <class Problem>
struct Task {
  const Problem* problem;
  std::int64_t i0, rows, j0, columns;

  std::int64_t size() const { return rows * columns * problem->k; }
};

// A task's part of C. If B is packed, each block of rows repeats the packing, so blocks are large,
// and largest if there are enough problems to give threads whole ones. If B is read in place,
// smaller blocks balance better. If there are too few blocks of rows, columns are cut as well.
constexpr std::int64_t kManyProblems = 8;

// A cut by columns packs the left operand once more, so a single thread makes none.
std::int64_t fewest_tasks() {
  const auto threads = RankContext::current().pool().threads();
  return threads == 1 ? 1 : 2 * threads;
}

template <class Kind>
std::int64_t rows_of_blocks(const Kind& kind, RightForm form, std::int64_t k,
                            std::int64_t problems) {
  if (kind.is_read_in_place(form)) return Kind::kInPlaceRows;
  return problems < kManyProblems ? std::min(kernels::kBlockRows, kind.most_block_rows(k))
                                  : kind.most_block_rows(k);
}

template <class Kind>
kernels::EvenCuts row_blocks(const Kind& kind, const typename Kind::Problem& problem,
                             std::int64_t problems) {
  return {problem.m, rows_of_blocks(kind, problem.b.form, problem.k, problems)};
}

template <class Kind>
std::int64_t columns_of_tasks(const Kind& kind, const ProblemsOf<Kind>& problems) {
  std::int64_t blocks = 0, columns = 0;
  for (const auto& problem : problems) {
    blocks += row_blocks(kind, problem, std::ssize(problems)).count();
    columns = std::max(columns, problem.n);
  }
  const auto fewest = fewest_tasks();
  if (blocks == 0 || blocks >= fewest) return Kind::kTaskColumns;
  const auto share = columns * blocks / fewest;
  return std::clamp(round_up(share, kernels::kGroupColumns), kernels::kGroupColumns,
                    Kind::kTaskColumns);
}

// The largest possible number of tasks, however the rows are distributed over the problems. With it
// every step asks for the same memory.
template <class Kind>
std::size_t most_tasks(const ProblemsOf<Kind>& problems) {
  std::int64_t rows = 0, columns = 0;
  for (const auto& problem : problems) {
    rows += problem.m;
    columns = std::max(columns, problem.n);
  }
  return static_cast<std::size_t>((rows / Kind::kInPlaceRows + std::ssize(problems)) *
                                      (columns / Kind::kTaskColumns + 1) +
                                  2 * fewest_tasks());
}

// Each task computes a block of C. Its bits do not depend on the block, nor on the thread that
// computes it. Long tasks come first, so that no thread is still busy with one at the end.
template <class Kind>
std::vector<Task<typename Kind::Problem>> cut(const Kind& kind, const ProblemsOf<Kind>& problems) {
  using TaskOf = Task<typename Kind::Problem>;
  std::vector<TaskOf> tasks;
  tasks.reserve(most_tasks<Kind>(problems));
  const auto width = columns_of_tasks(kind, problems);
  for (const auto& problem : problems) {
    const auto blocks = row_blocks(kind, problem, std::ssize(problems));
    for (std::int64_t i = 0; i < blocks.count(); ++i) {
      for (std::int64_t j0 = 0; j0 < problem.n; j0 += width) {
        tasks.push_back(
            {&problem, blocks.begin(i), blocks.length(i), j0, std::min(width, problem.n - j0)});
      }
    }
  }
  std::ranges::sort(tasks, {}, [](const TaskOf& task) {
    return std::tuple(-task.size(), task.problem, task.i0, task.j0);
  });
  return tasks;
}

template <class Kind>
void run_problems(const Kind& kind, const ProblemsOf<Kind>& problems) {
  const auto tasks = cut(kind, problems);
  parallel_for(std::ssize(tasks), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto& task = tasks[static_cast<std::size_t>(i)];
      kind.run(*task.problem, task.i0, task.rows, task.j0, task.columns);
    }
  });
}

// Elements of a right operand [k, n] that is packed once.
template <class Kind>
std::int64_t packed_numel(std::int64_t k, std::int64_t n) {
  return Kind::panel_rows(k) * round_up(n, kNzBlock);
}

// The right operand [k, n] as NZ, in `panels`.
template <class Kind, class T>
kernels::RightOperand<T> packed(const Kind& kind, const kernels::RightOperand<T>& b, std::int64_t k,
                                std::int64_t n, T* panels) {
  const auto height = Kind::panel_rows(k);
  parallel_for(n, kNzBlock, [&](std::int64_t j0, std::int64_t) {
    kind.pack(b, k, n, j0, j0 + kNzBlock, panels);
  });
  return {.data = panels, .form = RightForm::kNz, .stride = height};
}

// Packs the operands for which that pays, one problem after the other, then computes all problems.
// `room` is the largest number of elements that all panels can take, however the rows are
// distributed over the experts. So every step asks the arena for the same memory.
template <class Kind>
void run_packed(const Kind& kind, ProblemsOf<Kind>& problems, std::int64_t room) {
  using T = typename Kind::Element;
  Tensor buffer;
  if (room > 0) {
    buffer = Tensor::empty({room}, dtype_of<T>);
    T* panels = buffer.mutable_data<T>().data();
    std::int64_t used = 0;
    for (auto& problem : problems) {
      if (kind.is_read_in_place(problem.b.form) || problem.m < Kind::kPackOnceFromRows) continue;
      T* const at = panels + used;
      used += packed_numel<Kind>(problem.k, problem.n);
      check(used <= room, "packed weights: need room for ", used, " elements, got ", room);
      problem.b = packed(kind, problem.b, problem.k, problem.n, at);
    }
  }
  run_problems(kind, problems);
}

// Counts the packing of one matrix, out of `matrices`, that multiplies `rows` rows.
template <class Kind>
void count_packing(const Kind& kind, const StoredMatrix& matrix, std::int64_t rows,
                   std::int64_t matrices) {
  if (kind.is_read_in_place(matrix.form)) return;
  const kernels::EvenCuts blocks(rows, rows_of_blocks(kind, matrix.form, matrix.k, matrices));
  const auto packings = rows < Kind::kPackOnceFromRows ? blocks.count() : 1;
  auto& counters = RankContext::current().counters();
  counters.packed_bytes.fetch_add(
      packings * matrix.k * round_up(matrix.n, kNzBlock) * size_of(matrix.tensor.dtype()),
      std::memory_order_relaxed);
  auto& counter =
      matrix.form == RightForm::kRows ? counters.packed_panels : counters.transposed_packs;
  counter.fetch_add(1, std::memory_order_relaxed);
}

// The pairs must be those that this rank's kernels read.
void check_pairs(const Tensor& weight) {
  const auto kernels = RankContext::current_kernels();
  const auto order = kernels::bf16::loops_of(kernels).order;
  check<LayoutError>(weight.storage().nz_pairs().order == order,
                     "products: FRACTAL_NZ of bfloat16 must have the pairs that ", kernels,
                     " reads, got those of ",
                     order == PairOrder::kChains ? "amx" : "other kernels than amx",
                     "; convert it with nz_to_nd, and nd_to_nz under these kernels");
}

template <class T>
kernels::RightOperand<T> right_operand(const StoredMatrix& matrix) {
  const auto& tensor = matrix.tensor;
  const bool nz = tensor.layout() == Layout::kNZ;
  if (nz && tensor.dtype() == Dtype::kBFloat16) check_pairs(tensor);
  const T* data = nz ? tensor.nz_data<T>().data() : tensor.strided_data<T>();
  return {data + matrix.offset, matrix.form, matrix.stride};
}

void row_groups_into(const Tensor& x, const std::vector<StoredMatrix>& matrices,
                     const std::vector<std::int64_t>& offsets, Tensor& y) {
  assert(offsets.size() == matrices.size() + 1);
  const auto n = y.dim(1);
  dispatch_products(x.dtype(), [&]<class Kind>(const Kind& kind) {
    using T = typename Kind::Element;
    const T* from = x.data<T>().data();
    ProblemsOf<Kind> problems;
    problems.reserve(matrices.size());
    for (std::size_t e = 0; e < matrices.size(); ++e) {
      const auto begin = offsets[e];
      const auto rows = offsets[e + 1] - begin;
      const auto& matrix = matrices[e];
      assert(matrix.k == x.dim(1) && matrix.n == n);
      if (rows > 0 && n > 0) count_packing(kind, matrix, rows, std::ssize(matrices));
      auto& problem = problems.emplace_back();
      problem.a = {from + begin * matrix.k, matrix.k, 1};
      problem.b = right_operand<T>(matrix);
      problem.c_stride = n;
      problem.m = rows;
      problem.n = n;
      problem.k = matrix.k;
      kind.give(problem, y, begin * n);
    }
    const auto not_in_place = std::ranges::count_if(
        matrices, [&](const auto& matrix) { return !kind.is_read_in_place(matrix.form); });
    const auto crowded = std::min<std::int64_t>(not_in_place, x.dim(0) / Kind::kPackOnceFromRows);
    run_packed(kind, problems, crowded * packed_numel<Kind>(x.dim(1), n));
  });
}

void column_groups_into(const Tensor& x, const Tensor& y, std::span<const RowRun> groups, bool adds,
                        Tensor& w) {
  const auto k = x.dim(1), n = y.dim(1);
  dispatch_products(x.dtype(), [&]<class Kind>(const Kind& kind) {
    using T = typename Kind::Element;
    const T* left = x.data<T>().data();
    const T* right = y.data<T>().data();
    ProblemsOf<Kind> problems;
    problems.reserve(groups.size());
    for (std::size_t e = 0; e < groups.size(); ++e) {
      const auto [first, count] = groups[e];
      auto& problem = problems.emplace_back();
      problem.a = {left + first * k, 1, k};
      problem.b = {right + first * n, RightForm::kRows, n};
      problem.c_stride = n;
      problem.m = k;
      problem.n = n;
      problem.k = count;
      problem.adds = adds;
      kind.give(problem, w, static_cast<std::int64_t>(e) * k * n);
    }
    // Each group's rows are padded to whole blocks, or units.
    const auto block = Kind::panel_rows(1);
    const auto height = round_up(x.dim(0) + (std::ssize(groups) - 1) * (block - 1), block);
    run_packed(kind, problems, k < Kind::kPackOnceFromRows ? 0 : height * round_up(n, kNzBlock));
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
  const bool nz = weight.layout() == Layout::kNZ;
  const bool bf16 = weight.dtype() == Dtype::kBFloat16;
  const auto n = weight.dim(-1);
  std::int64_t rows = 1;  // of all experts
  for (std::int64_t i = 0; i < weight.ndim() - 1; ++i) rows *= weight.dim(i);
  const auto k = experts == 0 ? 0 : rows / experts;
  assert(!nz || (weight.nz_blocks() == NzBlocks{experts, k, n}));

  StoredMatrix matrix{.tensor = weight};
  if (nz && bf16) {
    const bool stored_transposed = weight.storage().nz_pairs().transposed;
    matrix.form = transposed == stored_transposed ? RightForm::kNz : RightForm::kNzTransposed;
    matrix.stride = round_up(stored_transposed ? n : k, kNzUnit);
  } else if (nz) {
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
    offset += nz ? nz_numel(k, n, weight.dtype()) : k * n;
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
  Tensor w = Tensor::empty(shape, arithmetic_dtype(x.dtype()));
  column_groups_into(x, y, groups, false, w);
  return w;
}

Tensor weight_gradient(const Function& function, std::size_t i, const Tensor& x, const Tensor& y,
                       const RowGroups& groups) {
  const auto& shape = function.edges()[i].shape;
  if (groups.sources() == 1) return multiply_column_groups(x, y, groups.offsets(), shape);
  const bool apart = !groups.is_one_micro_batch() && keeps_sources(function, i);
  TreeSum sum;
  const auto runs = groups.runs();
  const auto experts = static_cast<std::size_t>(groups.experts());
  for (std::int64_t s = 0; s < groups.sources(); ++s) {
    Tensor term = [&] {
      const MemoryTagGuard tag(MemoryTag::kGradients);
      return Tensor::empty(shape, arithmetic_dtype(x.dtype()));
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
