// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/blas_libraries.h"

#include <dlfcn.h>

#include <cstdlib>

#include "ops/kernels/matmul_eigen.h"

namespace moegrad::bench {
namespace {

// Each library keeps its symbols to itself: OpenBLAS and BLIS export the same names.
void* open(const char* soname) { return dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND); }

template <class F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(dlsym(library, name));
}

// The C interface of BLAS: 101 is row-major, 111 and 112 are no transpose and transpose.
void add_cblas(std::vector<BlasLibrary>& libraries, const char* name, const char* soname,
               const char* set_threads) {
  using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                         float, float*, int);
  void* const library = open(soname);
  if (library == nullptr) return;
  const auto sgemm = symbol<Sgemm>(library, "cblas_sgemm");
  if (sgemm == nullptr) return;
  if (const auto set = symbol<void (*)(long)>(library, set_threads)) set(1);
  libraries.push_back(
      {name, [sgemm](const Gemm& g) {
         const auto m = static_cast<int>(g.m), n = static_cast<int>(g.n), k = static_cast<int>(g.k);
         sgemm(101, g.transpose_a ? 112 : 111, g.transpose_b ? 112 : 111, m, n, k, 1.0F, g.a,
               g.transpose_a ? m : k, g.b, g.transpose_b ? k : n, 0.0F, g.c, n);
       }});
}

void add_onednn(std::vector<BlasLibrary>& libraries) {
  using Sgemm = int (*)(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*,
                        std::int64_t, const float*, std::int64_t, float, float*, std::int64_t);
  void* const library = open("libdnnl.so.2");
  if (library == nullptr) return;
  const auto sgemm = symbol<Sgemm>(library, "dnnl_sgemm");
  if (sgemm == nullptr) return;
  libraries.push_back({"oneDNN", [sgemm](const Gemm& g) {
                         sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k,
                               1.0F, g.a, g.transpose_a ? g.m : g.k, g.b, g.transpose_b ? g.k : g.n,
                               0.0F, g.c, g.n);
                       }});
}

}  // namespace

std::vector<BlasLibrary> blas_libraries() {
  // Before the first library that uses OpenMP is loaded: it is read once.
  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
  std::vector<BlasLibrary> libraries;
  libraries.push_back({"Eigen", [](const Gemm& g) {
                         kernels::matmul_eigen(g.a, g.transpose_a, g.b, g.transpose_b, g.c, false,
                                               g.m, g.k, g.n);
                       }});
  add_cblas(libraries, "OpenBLAS", "libopenblas.so.0", "openblas_set_num_threads");
  add_cblas(libraries, "BLIS", "libblis.so.4", "bli_thread_set_num_threads");
  add_onednn(libraries);
  return libraries;
}

}  // namespace moegrad::bench
