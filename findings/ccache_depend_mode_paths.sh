#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ccache 4.7.5 (ccache 4.8+really4.7.5-1) with g++ 12: with depend_mode, an object names the folder of
# another checkout, in spite of base_dir and -ffile-prefix-map.
#
# Expected: base_dir makes paths below it relative before the compiler sees them, and -ffile-prefix-map
#     takes away what is left. So an object that checkout `two` compiles names no folder of `one`, whose
#     precompiled header comes from the cache.
# Seen: with depend_mode the compiler gets the options as they were written, so the precompiled header
#     holds `one`'s absolute paths. It is found for `two` all the same, and -ffile-prefix-map=two= does
#     not match them: they are in the line tables of each object that uses it. Without depend_mode the
#     compiler gets relative paths, and no object names a folder.
# Consequence: what a release is linked from names folders of whoever filled the cache, and two builds
#     of the same sources differ by who came first.
# moegrad compiles its precompiled headers with a relative -I (moegrad_kind() in CMakeLists.txt), and its
# test of the installed package looks for the folder of any checkout.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for package in ccache=4.8+really4.7.5-1 libhiredis0.14=0.14.1-3; do
  apt-get -qq download "$package" 2>apt.log || { cat apt.log; exit 1; }
done
for file in *.deb; do dpkg -x "$file" tools; done
export LD_LIBRARY_PATH="$folder/tools/usr/lib/x86_64-linux-gnu"
export CCACHE_CONFIGPATH="$folder/none" CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
ccache="$folder/tools/usr/bin/ccache"

# In a checkout: precompiles a header, then compiles a file that uses it.
build() {
  mkdir -p "$1/part" "$1/build"
  echo 'inline int twice(int x) { return x + x; }' >"$1/part/twice.h"
  echo '#include <part/twice.h>' >"$1/all.h"
  echo "int main(int n, char**) { return twice(n) - $2; }" >"$1/use.cpp"
  (
    cd "$1/build"
    flags=(-g1 "-I$1" "-ffile-prefix-map=$1/=" -fpch-preprocess -MD)
    export CCACHE_BASEDIR="$1"
    cp ../all.h .
    "$ccache" g++ "${flags[@]}" -x c++-header -c all.h -o all.h.gch
    "$ccache" g++ "${flags[@]}" -include all.h -c ../use.cpp -o use.o
  )
}

for mode in CCACHE_NODEPEND CCACHE_DEPEND; do
  rm -rf one two
  export CCACHE_DIR="$folder/cache.$mode"
  export "$mode=1"
  build "$folder/one" 1
  build "$folder/two" 2  # another program, the same header
  hits=$("$ccache" --print-stats | awk '$1 == "direct_cache_hit" {print $2}')
  named=$(strings -a two/build/use.o | grep -c "^$folder/[a-z]*/part" || true)
  echo "$mode: $hits result from the cache, the object of two names $named folders of a checkout"
  unset "$mode"
done | tee seen
strings -a two/build/use.o | sed -n "s|^$folder|FOLDER|p" | tee -a seen
"$ccache" --version | head -1 | tee -a seen
diff - seen <<'TEXT' && echo "as recorded"
CCACHE_NODEPEND: 1 result from the cache, the object of two names 0 folders of a checkout
CCACHE_DEPEND: 1 result from the cache, the object of two names 1 folders of a checkout
FOLDER/one/part
ccache version 4.7.5
TEXT
