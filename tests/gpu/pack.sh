#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# pack.sh BUILD FOLDER: packs the commit, stripped programs, their libraries, MPICH's launcher, Meson
# and pytest into FOLDER/zero.tar.xz, for a machine that has only a GPU, CUDA, Python and NumPy. BUILD
# must lie in the checkout and be made for that GPU: meson setup BUILD -Dgpu_arch=90 -Dmpi=mpich.
# notes/gpu.md says what to run there.
set -euo pipefail
build=$(realpath "$1") out=$(mkdir -p "$2" && realpath "$2") pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT
cd "$(dirname "$0")/../.." && here=$(pwd -P)
case $build in "$here"/*) ;; *) echo "$build does not lie within $here" >&2; exit 2 ;; esac
git diff --quiet HEAD || { echo "there are changes that no commit has" >&2; exit 2; }
ninja -C "$build" > /dev/null
inside=${build#"$here"/}
mkdir -p "$pack/$inside/"meson-{private,logs} "$pack/lib/"{bin,python}
git archive HEAD | tar -x -C "$pack"
cp -L "$build"/meson-private/*.dat "$pack/$inside/meson-private/"
ninja -C "$build" -t targets all | sed -n 's/: [a-z]*_LINKER$//p' |
  grep -vE '\.(a|so)$|simulated|unit_tests|/openmpi_' | while read -r program; do
    mkdir -p "$pack/$inside/$(dirname "$program")"
    strip -o "$pack/$inside/$program" "$build/$program"
  done
cp -L "$(command -v mpiexec.hydra)" "$(command -v hydra_pmi_proxy)" "$pack/lib/bin/"
# The archive gets the programs' libraries, but not the system's, and not NCCL's: PyTorch brings it.
find "$pack/$inside" "$pack/lib/bin" -type f -perm -u+x -exec ldd {} + |
  sed -n 's/.*=> \(\/.*\) (.*/\1/p' | sort -u |
  grep -vE '/lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|nccl)\.|ld-linux' |
  while read -r library; do cp -L "$library" "$pack/lib/"; done
# The archive gets this machine's Meson, because another version cannot read the build.
/usr/bin/python3 -c 'import mesonbuild, pytest, sys
for name, module in sys.modules.items():
    if "." not in name and "-packages" in (path := str(getattr(module, "__path__", [""])[0])):
        print(path)' | while read -r package; do cp -rL "$package" "$pack/lib/python/"; done
cat > "$pack/lib/bin/meson" <<'EOF'
#!/bin/sh
exec python3 -m mesonbuild.mesonmain "$@" --no-rebuild --wrapper as_here
EOF
# Meson's tests name Python and the launcher by the building machine's paths, which as_here replaces.
# The other machine's python3 may have PyTorch.
cat > "$pack/lib/bin/as_here" <<'EOF'
#!/bin/sh
for word; do
  shift
  case $word in */bin/python3*) word=python3 ;; */bin/mpiexec*) word=$M ;; esac
  set -- "$@" "$word"
done
exec "$@"
EOF
chmod +x "$pack/lib/bin/"*
# Paths are compiled in, so unpack.sh unpacks the archive to the folder in which it was built.
cat > "$out/unpack.sh" <<EOF
export P="$here" B="$build" C="commit $(git rev-parse --short HEAD)"
export M="$here/lib/bin/mpiexec.hydra"
[ -d "\$B" ] || { mkdir -p "\$P" && tar -C "\$P" -xJf "\$1/zero.tar.xz"; }
torch=\$(python3 -c 'import torch; print(torch.__path__[0])' 2> /dev/null)/../nvidia
export PYTHONPATH="\$P/lib/python\${PYTHONPATH:+:\$PYTHONPATH}" PATH="\$P/lib/bin:\$PATH:/usr/local/cuda/bin"
export LD_LIBRARY_PATH="\$P/lib:/usr/local/cuda/lib64:\$torch/nccl/lib:\$torch/cu13/lib"
EOF
tar -C "$pack" -cJf "$out/zero.tar.xz" .
ls -l "$out"
