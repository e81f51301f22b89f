# SPDX-License-Identifier: MIT
# It installs missing packages. ./tutorial reads this file.

# Each list has words PACKAGE:PURPOSE. `test --all` also tries more_packages, style_packages and
# browser_packages, and goes on if they cannot be installed.
build_packages() {
  echo g++:compiler meson:build ninja-build:build pkg-config:build libcli11-dev:options \
    nlohmann-json3-dev:logs libfmt-dev:printing doctest-dev:tests python3:scripts
  open_mpi_installed || echo mpich:ranks libmpich-dev:ranks
}
packages() {
  build_packages
  echo python3-pytest:tests python3-numpy:tests git:versions \
    python3-json5:configurations python3-yaml:configurations
}
more_packages() {
  echo clang-16:digests g++-aarch64-linux-gnu:digests qemu-user-static:digests ccache:sabotages \
    debootstrap:systems
}
style_packages() { echo clang-format:style clang-tidy-16:style; } # not every system has version 16
browser_packages() { echo chromium:pages fonts-dejavu-core:pages; }

missing() { # missing LIST: prints its missing packages; without apt-get the missing tools, of any LIST
  if debian; then
    for package in $("$1"); do installed "${package%:*}" || echo "$package"; done
  else
    for tool in g++ meson ninja pkg-config python3; do have "$tool" || echo "$tool"; done
  fi
}
missing_names() { missing "$1" | cut -d : -f 1 | xargs; }

apt_install() { # apt_install PACKAGE...: on a terminal asks first, but only once; dies if it fails
  root='' by_hand="as root: apt-get install $*"
  if [ "$(id -u)" -ne 0 ]; then
    have sudo || die 6 "installing needs root or sudo; by hand, $by_hand"
    root=sudo
  fi
  if [ -t 0 ] && [ -t 1 ] && [ -z "${agreed-}" ]; then
    printf 'Install with apt-get? [Y/n] '
    read -r answer || answer=n
    case $answer in [nN]*) die 6 "nothing was installed; by hand: apt-get install $*" ;; esac
  fi
  agreed=yes
  [ -z "$root" ] || phase 'asking sudo whether you may install' sudo -l apt-get
  phase 'reading the lists of packages from the network' read_lists
  phase "installing $# packages" \
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
  by_hand=''
}

# Without Error-Mode=any apt-get ends with 0 even if it could fetch no list. The other options let it
# give up after half a minute, not after a quarter of an hour, if a name server never answers. Some
# lists are enough, because a server other than the distribution's may be down.
read_lists() {
  $root env RES_OPTIONS='timeout:3 attempts:1' apt-get -o APT::Update::Error-Mode=any \
    -o Acquire::Retries=1 update || grep -qE '^(Hit|Get):' "$log"
}

install() { # install LIST: installs its missing packages; dies if it cannot
  names=$(missing_names "$1")
  [ -n "$names" ] || return 0
  debian || die 6 "without apt-get nothing can be installed here; missing: $names"
  echo 'Missing packages, and what each is for:'
  for package in $(missing "$1"); do printf '  %-24s%s\n' "${package%:*}" "${package#*:}"; done
  # shellcheck disable=SC2086 # each package is one argument
  apt_install $names
}

open_mpi_installed() { installed libopenmpi-dev && installed openmpi-bin; }

choose_mpi() { # sets mpi to one that works; installs Open MPI if none does; dies if none works then
  if find_mpi; then return; fi
  if debian && ! open_mpi_installed; then
    echo "This system's MPICH does not start two ranks that see each other: Open MPI instead."
    apt_install openmpi-bin libopenmpi-dev
    if find_mpi; then return; fi
  fi
  die 6 "$none_works (the attempts: $logs/two_ranks.*.log)"
}
