#!/bin/sh
# SPDX-License-Identifier: MIT
# own_host.sh PROGRAM ARGUMENTS...: a rank that NCCL takes for a machine of its own, so that ranks
# which share a GPU can test what else needs a GPU each. Correctness only: their messages go through
# the loopback interface, and the ranks take turns on the GPU.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
export NCCL_HOSTID="rank-$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo
export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0
export NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_CTAS=2
exec "$@"
