# SPDX-License-Identifier: MIT
# This is `./tutorial test`; ./tutorial reads this file. It runs passes. A pass is a build with its own
# options and the tests in it that a setup or a suite of Meson chooses (tests/meson.build).

# pass NAME TOOLS SETUP TARGETS CHOICE...: configures a build with the options SETUP (none: the user's
# build), builds TARGETS (none: all), and runs the tests CHOICE. If one of TOOLS is missing, the pass is
# skipped. Adds to $results a line for tools/test_results.py.
pass() {
  pass=$1 tools=$2 setup=$3 targets=$4 folder=build code=0
  shift 4
  [ -z "$setup" ] || folder=build/$pass
  noted=$folder/meson-logs/$pass
  rm -f "$noted"*.json # never read the results of an earlier run
  for tool in $tools; do have "$tool" || code="without $tool"; done
  # shellcheck disable=SC2086 # $setup and $targets have several words
  [ "$code" != 0 ] || (
    [ -f "$folder/build.ninja" ] ||
      phase "configuring $pass" meson setup "$folder" "-Dmpi=$mpi" $setup
    phase "building $pass" compile "$folder" $targets
    # Meson runs one test more at a time than there are cores, because some tests mostly wait.
    ${budget:+timeout --foreground "$budget"} meson test -C "$folder" --no-rebuild \
      --print-errorlogs --logbase "$pass" --num-processes "$(($(nproc) + 1))" "$@" </dev/null
  ) || code=$?
  results="$results$noted|$code
"
}

run_tests() {
  budget='' results=''
  case "$*" in
    '' | --all) ;;
    --gpu) budget=600 ;;
    '--gpu --budget '*) budget=$(positive --budget "${*#--gpu --budget }") ;;
    *) die 2 "test: it takes --all, --gpu [--budget SECONDS] or nothing, not '$*'" ;;
  esac
  export PYTHONUTF8=1 # tests read files in UTF-8, whatever the terminal's encoding is
  prepare packages
  for list in more_packages browser_packages style_packages; do
    [ "$*" != --all ] || (install "$list") || echo 'Going on without them.'
  done
  [ -n "$budget" ] || pass default '' '' '' --setup default
  [ -z "$*" ] || pass gpu '' '' '' --suite gpu
  if [ "$*" = --all ]; then
    pass style '' '' '' --suite style
    no_gpu=-Dcuda=disabled unit=tests/unit/unit_tests ranks=tests/ranks/test
    chapters=$(for c in 0?_*; do echo "$c/$c"; done)
    on_ranks=$(for c in communicator 0?_*; do echo "${ranks}_$c"; done)
    # With -O3 sanitized code takes six times as long to compile. With Clang, Meson warns of sanitizers
    # unless -Db_lundef=false is set. A race's report names lines only with debug information.
    sanitized="$no_gpu -Doptimization=g -Db_lundef=false -Db_sanitize"
    pass asan '' "$sanitized=address,undefined" \
      "$unit $on_ranks $chapters tests/programs/libinjector.so" --setup sanitizer
    windows='07_offload 08_infinity' # 07's test also runs the window of 06
    # shellcheck disable=SC2046,SC2086 # each chapter is one argument
    pass tsan '' "$sanitized=thread -Ddebug=true" "$unit$(printf " ${ranks}_%s" $windows)" \
      --setup sanitizer --suite stream $(printf -- '--suite %s ' $windows) --no-suite nosan
    pass long '' '' '' --suite long
    # The bits must not depend on the optimization, the instruction set or the compiler.
    pass O1 '' "$no_gpu -Doptimization=1" "$chapters" --suite digests
    pass arm64 'aarch64-linux-gnu-g++ qemu-aarch64-static' \
      "$no_gpu --cross-file=tests/arm64.ini" 01_adam/01_adam --suite digests
    export CXX=clang++-16 # Clang 16 is the first that has the C++20 used here
    pass clang $CXX "$no_gpu" "$chapters" --suite digests
  fi
  printf %s "$results" | "$(python)" -B tools/test_results.py
}
