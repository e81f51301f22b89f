#!/bin/sh
# SPDX-License-Identifier: MIT
# It chooses the MPI that the programs are built with. ./tutorial reads this file, and sets $logs. Meson
# runs it as a program; then it prints the MPIs that work, that for -Dmpi=auto first, or why none does.

# Unless told so, Open MPI does not start as root, and does not start more ranks than cores. MPICH
# ignores these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# `mpiexec` may be either MPI's, so each launcher is called by its own name. An Open MPI that no
# distribution packaged has only `mpirun`.
launcher() { # launcher mpich|openmpi: prints the path of its launcher, or nothing
  case $1,$(owner) in
    mpich,*) command -v mpiexec.mpich || command -v mpiexec.hydra ;;
    *,openmpi) command -v mpiexec.openmpi || command -v mpirun ;;
    *) command -v mpiexec.openmpi || command -v mpirun.openmpi ;;
  esac
}

pkg_config_name() { # prints the name that pkg-config knows; that of Open MPI's C interface is ompi-c
  if [ "$1" = openmpi ]; then echo ompi-c; else echo mpich; fi
}

# An MPI is tried before use, because Ubuntu 24.04's MPICH starts each rank alone, in its own world.
two_ranks() { # two_ranks mpich|openmpi: succeeds if two ranks see each other
  mkdir -p "$logs"
  program=$logs/two_ranks.$1
  flags=$(pkg-config --cflags --libs "$(pkg_config_name "$1")" 2>"$program.log") || return 1
  # shellcheck disable=SC2086 # $flags has several words, and $CXX may have
  ${CXX:-c++} -DOMPI_SKIP_MPICXX -o "$program" tools/two_ranks.cpp $flags >"$program.log" 2>&1 &&
    timeout 30 "$(launcher "$1")" -n 2 "$program" >>"$program.log" 2>&1 </dev/null
}

owner() { # prints whose launcher `mpirun` is, or nothing if there is none or it is another MPI's
  case $(mpirun --version 2>/dev/null </dev/null) in
    *'Open MPI'*) echo openmpi ;;
    *HYDRA* | *MPICH*) echo mpich ;;
  esac
}

# The MPI that owns `mpirun` comes first, because README starts programs with it.
mpis() { if [ "$(owner)" = openmpi ]; then echo openmpi mpich; else echo mpich openmpi; fi; }

find_mpi() { # sets mpi to the first that works; fails if none does
  for mpi in $(mpis); do
    if two_ranks "$mpi"; then return; fi
  done
  return 1
}

none_works="no MPI here starts two ranks that see each other: install mpich and libmpich-dev, or \
openmpi-bin and libopenmpi-dev"

if [ "${0##*/}" = mpi.sh ]; then
  cd -- "$(dirname -- "$0")/.." || exit
  logs=$(mktemp -d) || exit
  working=
  for mpi in $(mpis); do ! two_ranks "$mpi" || working=${working:+$working }$mpi; done
  if [ -n "$working" ]; then echo "$working"; else echo "$none_works" && tail -n 1 "$logs"/*.log; fi
  rm -r "$logs"
  [ -n "$working" ]
fi
