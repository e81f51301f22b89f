# SPDX-License-Identifier: MIT
# This is `./tutorial doctor`; ./tutorial reads this file.

row() { printf '%-12s%s\n' "$1" "${2:-missing}"; }

first_line() { "$@" 2>/dev/null </dev/null | head -n 1; }

mpi_state() { # mpi_state mpich|openmpi: prints its version and whether it works; without launcher, nothing
  if [ -z "$(launcher "$1")" ]; then return; fi
  version=$(first_line pkg-config --modversion "$(pkg_config_name "$1")")
  if ! have g++ || [ -z "$version" ]; then
    echo "${version:-its launcher alone}; not tried, the compiler or its headers are missing"
  elif two_ranks "$1"; then
    echo "$version, two ranks see each other"
  else
    echo "$version, not usable: two ranks do not see each other"
  fi
}

nccl_state() { # prints where NCCL is, and for a Python wheel's the option that lets Meson find it
  wheel=$(first_line python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])')
  for root in /usr /usr/local /usr/local/cuda "$wheel"; do
    [ -f "$root/include/nccl.h" ] || continue
    echo "in $root"
    [ "$root" != "$wheel" ] || printf '%12sbuild with: meson setup build -Dnccl_root=%s' '' "$wheel"
    return
  done
}

python_module() { # python_module NAME: prints its version in the Python that runs the scripts
  first_line "$(python)" -c "from importlib.metadata import version; print(version('$1'))"
}

# Prints which MPI will be used, and why. $where: on CPU or GPUs. $mpich, $openmpi: from mpi_state.
say_mpi() {
  why=
  for name in $(mpis); do
    case $name in mpich) state=$mpich called=MPICH ;; *) state=$openmpi called='Open MPI' ;; esac
    case $state in
      *'ranks see each other')
        [ "$name" != "$(owner)" ] || why=", because mpirun is its launcher"
        echo "Will be used: $called ${state%%,*}$why, $where."
        own=$(basename "$(launcher "$name")")
        [ -n "$why" ] || ! have mpirun || echo "Start programs with $own, not with mpirun."
        return ;;
    esac
  done
  case $mpich,$openmpi in
    *'not tried'*) echo "Will be used: that MPI, if its ranks see each other; $where." ;;
    ,) echo "Will be used: MPICH once it is installed, or Open MPI if its ranks fail, $where." ;;
    *) if debian && ! open_mpi_installed; then
         echo 'Will be used: Open MPI (openmpi-bin, libopenmpi-dev), once it is installed.'
       else echo "Will be used: none, because $none_works."; fi ;;
  esac
}

doctor() {
  [ $# -eq 0 ] || die 2 'doctor: it takes no options'
  logs=$(mktemp -d) || exit # not build/log, which may belong to another user
  mpich=$(mpi_state mpich) openmpi=$(mpi_state openmpi)
  rm -r "$logs"
  row system "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), Linux $(uname -r)"
  row cores "$(nproc)"
  row memory "$(awk '/^MemTotal/ { printf "%.1f GB", $2 * 1024 / 1e9 }' /proc/meminfo)"
  row compiler "$(first_line g++ --version)"
  for tool in meson ninja; do row $tool "$(first_line $tool --version)"; done
  row MPICH "$mpich"
  row 'Open MPI' "${openmpi:-none}"
  row numpy "$(python_module numpy)"
  torch=$(python_module torch)
  row torch "${torch:-none} (for the benchmark alone)"
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
  name=$(first_line nvidia-smi -L | sed 's/^GPU 0: //; s/ (UUID.*//')
  nvcc=$(PATH=$PATH:/usr/local/cuda/bin nvcc --version 2>/dev/null |
    sed -n 's/.*release \([0-9.]*\).*/\1/p')
  nccl=$(nccl_state)
  if [ "$gpus" -eq 0 ]; then row GPUs none; else row GPUs "$gpus x $name"; fi
  row CUDA "${nvcc:-none; GPUs need nvcc and cuBLAS}"
  row NCCL "${nccl:-none; GPUs of several ranks then talk through MPI}"
  echo
  where="on the CPU${nvcc:+; the code for GPUs is built, and none is here}"
  if [ -n "$nvcc" ] && [ "$gpus" -gt 0 ]; then where='on GPUs, and with --device cpu on the CPU'; fi
  say_mpi | fold -s -w 79
  names=$(missing_names packages)
  echo "Missing: ${names:-nothing}.${names:+ Each command installs what it needs of it.}" | fold -s -w 79
}
