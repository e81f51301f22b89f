// SPDX-License-Identifier: MIT
// Stands in for the CUDA toolkit's header of this name: the element types that cuBLAS is told.
#pragma once

enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
using cudaDataType = cudaDataType_t;
