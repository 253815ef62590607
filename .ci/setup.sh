# SPDX-License-Identifier: Apache-2.0
# Sourced by examples/train.sh and tests/run.sh: installs what is missing, builds a preset.

moegrad_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# bible-kjv and bible-kjv-text are the training text, graphviz draws graphs, doxygen makes the API
# reference; all the others are build tools and libraries.
moegrad_packages=(
  g++ cmake ninja-build ccache lld python3 git
  libeigen3-dev libboost-graph-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  libopenmpi-dev openmpi-bin
  bible-kjv bible-kjv-text graphviz doxygen
)

# moegrad_missing_packages [PACKAGE...]: prints those that are not installed, one a line.
moegrad_missing_packages() {
  local package status
  for package in "${moegrad_packages[@]}" "$@"; do
    status="$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" || status=absent
    [[ $status == installed ]] || echo "$package"
  done
}

# apt-get as root, else through a sudo that asks nothing.
moegrad_apt_get() {
  local as_root=()
  [[ "$(id -u)" == 0 ]] || as_root=(sudo -n)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null >&2
}

# moegrad_setup [PACKAGE...]: installs what is missing of moegrad_packages and of these; without the
# right or the means to, names them and fails.
moegrad_setup() {
  local missing
  mapfile -t missing < <(moegrad_missing_packages "$@")
  ((${#missing[@]})) || return 0
  echo "installing: ${missing[*]}" >&2
  if ! { moegrad_apt_get update &&
         moegrad_apt_get install -y --no-install-recommends "${missing[@]}"; }; then
    echo "could not install these Debian packages, please install them yourself:" >&2
    printf '%s\n' "${missing[@]}"
    return 1
  fi
}

# moegrad_build PRESET [TARGET...]
moegrad_build() {
  local preset="$1" targets=()
  shift
  (($#)) && targets=(--target "$@")
  (
    cd "$moegrad_root" &&
      cmake --preset "$preset" --log-level=WARNING &&
      cmake --build --preset "$preset" -j "$(nproc)" "${targets[@]}"
  ) >&2
}
