// SPDX-License-Identifier: MIT
// Stands in for NCCL's header: what the project uses of it, for ranks that are processes of one
// machine and have simulated GPUs.
#pragma once
#include "cuda_runtime.h"

using ncclComm_t = struct ncclComm*;

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t { ncclSuccess, ncclUnhandledCudaError, ncclRemoteError = 6 };
enum ncclDataType_t { ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 };
enum ncclRedOp_t { ncclSum = 0 };

const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
struct ncclConfig_t {
  int maxCTAs;
};
#define NCCL_CONFIG_INITIALIZER \
  { 32 }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommDestroy(ncclComm_t comm);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
/// `from` must be this rank's part of `to`, as in all calls of the project.
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
