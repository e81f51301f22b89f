#!/bin/sh
# SPDX-License-Identifier: MIT
# own_host.sh PROGRAM ARGUMENTS...: starts one rank that uses NCCL. If there are fewer GPUs than ranks,
# NCCL takes each rank for a machine of its own, so that ranks can share a GPU. That tests correctness
# only, because messages go through the loopback interface and the ranks take turns on the GPU. If
# there are enough GPUs, NCCL is left as it is.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} ranks=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-1}}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ -z "$CUDA_VISIBLE_DEVICES" ] || gpus=$(echo "$CUDA_VISIBLE_DEVICES" | tr , '\n' | wc -l)
if [ "$gpus" -lt "$ranks" ]; then
  export NCCL_HOSTID="rank-$rank" NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo
  export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0
  export NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_CTAS=2
fi
exec "$@"
