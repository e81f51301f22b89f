# SPDX-License-Identifier: MIT
# Installs what is missing, and finds an MPI that works; a part of ./tutorial, which reads it.

# PACKAGE:PURPOSE each; those for `test --all` it can do without.
build_packages() {
  echo g++:compiler meson:build ninja-build:build pkg-config:build libcli11-dev:options \
    nlohmann-json3-dev:logs libfmt-dev:printing doctest-dev:tests python3:scripts
  open_mpi_installed || echo mpich:ranks libmpich-dev:ranks
}
number_packages() { echo python3:scripts python3-numpy:mistakes; }
packages() {
  build_packages
  echo python3-pytest:tests python3-numpy:tests python3-matplotlib:figures git:versions
}
more_packages() {
  echo clang-16:digests g++-aarch64-linux-gnu:digests qemu-user-static:digests ccache:sabotages \
    debootstrap:systems
}
browser_packages() { echo chromium:pages fonts-dejavu-core:pages; }

missing() { # missing LIST: what is not there of it; where apt-get is not at home, of the tools
  if debian; then
    for package in $("$1"); do installed "${package%:*}" || echo "$package"; done
  else
    for tool in g++ meson ninja pkg-config python3; do have "$tool" || echo "$tool"; done
  fi
}
missing_names() { missing "$1" | cut -d : -f 1 | xargs; }

apt_install() {
  root=
  if [ "$(id -u)" -ne 0 ]; then
    have sudo || die 6 "installing needs root or sudo; as root: apt-get install $*"
    root=sudo
  fi
  if [ -t 0 ] && [ -t 1 ] && [ -z "${agreed-}" ]; then
    printf 'Install with apt-get? [Y/n] '
    read -r answer || answer=n
    case $answer in [nN]*) die 6 "nothing was installed; by hand: apt-get install $*" ;; esac
  fi
  agreed=yes
  phase 'reading the lists of packages' $root apt-get update
  phase "installing $# packages" \
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

install() { # install LIST: what is missing of it
  names=$(missing_names "$1")
  [ -n "$names" ] || return 0
  debian || die 6 "without apt-get nothing can be installed here; missing: $names"
  echo 'Missing packages, and what each is for:'
  for package in $(missing "$1"); do printf '  %-24s%s\n' "${package%:*}" "${package#*:}"; done
  # shellcheck disable=SC2086 # one argument a package
  apt_install $names
}

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
  g++ -DOMPI_SKIP_MPICXX -o "$program" tools/two_ranks.cpp $flags >"$program.log" 2>&1 &&
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
