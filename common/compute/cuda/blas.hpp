// SPDX-License-Identifier: MIT
// The functions of cublasLt that are used. The first product loads its library, half a gigabyte.
#pragma once
#include <cublasLt.h>

namespace zero::cuda {
struct Blas {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  // Of these three the header's functions without "_internal" only add the size of what they fill.
  decltype(&cublasLtMatmulDescInit_internal) start_description;
  decltype(&cublasLtMatrixLayoutInit_internal) start_layout;
  decltype(&cublasLtMatmulPreferenceInit_internal) start_preference;
  decltype(&cublasLtMatmulDescSetAttribute) describe;
  decltype(&cublasLtMatmulPreferenceSetAttribute) prefer;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;
  decltype(&cublasLtGetStatusString) words;
};

/// Throws Error (resources) when the library is not there.
const Blas& blas();
}  // namespace zero::cuda
