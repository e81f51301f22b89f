// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <fmt/format.h>

#include "compute/cuda/blas.hpp"
#include "memory/error.hpp"

namespace zero::cuda {
namespace {
template <class Function> void find(void* library, const char* name, Function& function) {
  function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
  if (function) return;
  throw Error(ExitCode::resources, fmt::format("cuBLAS cannot be loaded: {}", dlerror()));
}

Blas load() {
  const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  Blas blas{};
  find(library, "cublasCreate_v2", blas.create);
  find(library, "cublasDestroy_v2", blas.destroy);
  find(library, "cublasSetStream_v2", blas.set_stream);
  find(library, "cublasSetMathMode", blas.set_math_mode);
  find(library, "cublasSetWorkspace_v2", blas.set_workspace);
  find(library, "cublasGemmEx", blas.gemm);
  find(library, "cublasGetStatusString", blas.words);
  return blas;
}
}  // namespace

const Blas& blas() {
  static const Blas loaded = load();
  return loaded;
}
}  // namespace zero::cuda
