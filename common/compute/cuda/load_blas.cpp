// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <fmt/format.h>

#include "compute/cuda/blas.hpp"
#include "memory/error.hpp"

namespace zero::cuda {
const Blas& blas() {
  static const Blas loaded = [] {
    const std::string file = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto find = [&]<class Function>(const char* name, Function& function) {
      function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
      if (function) return;
      throw Error(ExitCode::resources, fmt::format("cuBLAS cannot be loaded: {}", dlerror()));
    };
    Blas functions{};
    find("cublasCreate_v2", functions.create);
    find("cublasDestroy_v2", functions.destroy);
    find("cublasSetStream_v2", functions.set_stream);
    find("cublasSetMathMode", functions.set_math_mode);
    find("cublasSetWorkspace_v2", functions.set_workspace);
    find("cublasSetSmCountTarget", functions.set_sm_count_target);
    find("cublasGemmEx", functions.gemm);
    find("cublasGetStatusString", functions.words);
    return functions;
  }();
  return loaded;
}
}  // namespace zero::cuda
