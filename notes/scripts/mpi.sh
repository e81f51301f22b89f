# SPDX-License-Identifier: MIT
# Which MPI works on this machine; a part of ./tutorial, which reads it.

open_mpi_installed() { installed libopenmpi-dev && installed openmpi-bin; }

# The unsuffixed mpiexec belongs to whichever MPI was installed last, so each is called by its name.
launcher() { # launcher mpich|openmpi
  case $1 in
    mpich) command -v mpiexec.mpich || command -v mpiexec.hydra ;;
    openmpi) command -v mpiexec.openmpi || command -v mpirun.openmpi ;;
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
  # shellcheck disable=SC2086 # flags are words
  g++ -DOMPI_SKIP_MPICXX -o "$program" notes/scripts/two_ranks.cpp $flags >"$program.log" 2>&1 &&
    timeout 30 "$(launcher "$1")" -n 2 "$program" >>"$program.log" 2>&1 </dev/null
}

choose_mpi() { # sets mpi
  for mpi in mpich openmpi; do
    if two_ranks "$mpi"; then return; fi
  done
  if debian && ! open_mpi_installed; then
    echo "This system's MPICH does not start two ranks that see each other: Open MPI instead."
    apt_install openmpi-bin libopenmpi-dev
    if two_ranks openmpi; then return; fi
  fi
  die 6 "no MPI here starts two ranks that see each other; the attempts: $logs/two_ranks.*.log"
}
