// SPDX-License-Identifier: MIT
// Marks what the host and a GPU both call, so that arithmetic is written once.
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
