# Sourced by ./run and ./test: installs the Debian packages of packages.txt that are missing, then builds.
# Prints a line for each step that takes time; does nothing, and needs no network, the second time.

step() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

install_packages() {
  local missing
  missing=$(grep -v '^#' packages.txt | while read -r name; do
    dpkg-query -W -f '${Status}\n' "$name" 2>/dev/null | grep -q ' installed$' || echo "$name"
  done)
  [ -z "$missing" ] && return 0
  local sudo=
  if [ "$(id -u)" != 0 ]; then
    sudo=sudo
    if ! command -v sudo >/dev/null; then
      echo "larder: these packages are missing; install them as root: apt-get install $(echo $missing)" >&2
      return 1
    fi
  fi
  step "Installing $(echo "$missing" | wc -l) system packages: $(echo $missing)"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# build PRESET TARGET...: configures if needed, compiles what changed.
build() {
  local preset=$1 dir=build
  shift
  if [ ! -f "$dir/build.ninja" ]; then
    step "Configuring ($preset)"
    cmake --preset "$preset" >"$dir.log" 2>&1 || { cat "$dir.log" >&2; rm -f "$dir.log"; return 1; }
    rm -f "$dir.log"
  fi
  if ! ninja -C "$dir" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
    step "Compiling $* (several minutes the first time)"
    ninja -C "$dir" "$@" >&2
  fi
}
