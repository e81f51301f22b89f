// SPDX-License-Identifier: MIT
#include <dlfcn.h>

#include "compute/cuda/runtime.hpp"
#include "memory/throw_error.hpp"

namespace zero::cuda {
const Blas& blas() {
  static const Blas loaded = [] {
    const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto find = [&]<class Function>(const char* name, Function& function) {
      function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
      if (function) return;
      throw_error(ExitCode::resources, "cuBLAS cannot be loaded: {}", dlerror());
    };
    Blas functions{};
    find("cublasLtCreate", functions.create);
    find("cublasLtDestroy", functions.destroy);
    find("cublasLtMatmulDescInit_internal", functions.start_description);
    find("cublasLtMatrixLayoutInit_internal", functions.start_layout);
    find("cublasLtMatmulPreferenceInit_internal", functions.start_preference);
    find("cublasLtMatmulDescSetAttribute", functions.describe);
    find("cublasLtMatrixLayoutSetAttribute", functions.lay_out);
    find("cublasLtMatmulPreferenceSetAttribute", functions.prefer);
    find("cublasLtMatmulAlgoGetHeuristic", functions.choose);
    find("cublasLtMatmul", functions.multiply);
    find("cublasLtGetStatusString", functions.status_string);
    return functions;
  }();
  return loaded;
}
}  // namespace zero::cuda
