#!/bin/sh
# SPDX-License-Identifier: MIT
# Which MPI the programs are built with: a part of ./tutorial, which reads it. Meson runs it: it prints
# the names of the MPIs that work, the one for -Dmpi=auto first, or why there is none.

# Open MPI refuses to start as root, and more ranks than cores, unless told so; MPICH ignores these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# `mpiexec` alone is whichever MPI's the system has made it, so each is called by its own name. An Open
# MPI that is not a distribution's has no such name.
launcher() { # launcher mpich|openmpi
  case $1,$(owner) in
    mpich,*) command -v mpiexec.mpich || command -v mpiexec.hydra ;;
    *,openmpi) command -v mpiexec.openmpi || command -v mpirun ;;
    *) command -v mpiexec.openmpi || command -v mpirun.openmpi ;;
  esac
}

pkg_config_name() { # Open MPI's C interface has a name of its own
  if [ "$1" = openmpi ]; then echo ompi-c; else echo mpich; fi
}

# Do two ranks see each other? Ubuntu 24.04's MPICH starts every rank in a world of its own.
two_ranks() { # two_ranks mpich|openmpi
  mkdir -p "$logs"
  program=$logs/two_ranks.$1
  flags=$(pkg-config --cflags --libs "$(pkg_config_name "$1")" 2>"$program.log") || return 1
  # shellcheck disable=SC2086 # flags and the compiler are words
  ${CXX:-c++} -DOMPI_SKIP_MPICXX -o "$program" tools/two_ranks.cpp $flags >"$program.log" 2>&1 &&
    timeout 30 "$(launcher "$1")" -n 2 "$program" >>"$program.log" 2>&1 </dev/null
}

owner() { # whose launcher `mpirun` is; nothing: there is none, or it is another MPI's
  case $(mpirun --version 2>/dev/null </dev/null) in
    *'Open MPI'*) echo openmpi ;;
    *HYDRA* | *MPICH*) echo mpich ;;
  esac
}

# That one comes first, because README starts programs with `mpirun`.
mpis() { if [ "$(owner)" = openmpi ]; then echo openmpi mpich; else echo mpich openmpi; fi; }

find_mpi() { # sets mpi to the first that works
  for mpi in $(mpis); do
    if two_ranks "$mpi"; then return; fi
  done
  return 1
}

none_works="no MPI here starts two ranks that see each other: install mpich and libmpich-dev, or \
openmpi-bin and libopenmpi-dev"

if [ "${0##*/}" = mpi.sh ]; then
  cd -- "$(dirname -- "$0")/.."
  logs=$(mktemp -d) || exit
  working=
  for mpi in $(mpis); do ! two_ranks "$mpi" || working="$working $mpi"; done
  if [ -n "$working" ]; then echo $working; else echo "$none_works" && tail -n 1 "$logs"/*.log; fi
  rm -r "$logs"
  [ -n "$working" ]
fi
