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

# Whether the last configuration found no nvcc and there is one now.
has_new_nvcc() {
  grep -qs '^LARDER_NVCC:.*-NOTFOUND$' "$1/CMakeCache.txt" && PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null
}

# Shows what ninja says as it comes, once it has something to do: its look for new files is nothing yet.
show_progress() {
  local line is_announced= before= after='\n'
  if [ -t 2 ]; then before='\r\033[K'; fi
  while IFS= read -r line; do
    case $line in
      'ninja: Entering directory'* | '['*'] Re-checking globbed directories...' | 'ninja: no work to do.') continue ;;
      '['[0-9]*)
        [ -n "$is_announced" ] || step "Compiling $* (several minutes the first time)"
        is_announced=1
        # On a terminal each of these takes the place of the one before.
        if [ -t 2 ]; then after='' line=${line:0:78}; fi ;;
      *) after='\n' ;;
    esac
    printf "$before%s$after" "$line" >&2
  done
  if [ -z "$after" ]; then echo >&2; fi
}

# build PRESET TARGET...: configures if needed, compiles what changed.
build() {
  local preset=$1 dir=build
  shift
  # Another user's, who has built it: nothing here can be written.
  if [ -x "$dir/larder" ] && [ ! -w "$dir" ]; then return 0; fi
  if [ ! -f "$dir/build.ninja" ] || has_new_nvcc "$dir"; then
    step "Configuring ($preset)"
    cmake --preset "$preset" >"$dir.log" 2>&1 || { cat "$dir.log" >&2; rm -f "$dir.log"; return 1; }
    rm -f "$dir.log"
  fi
  ninja -C "$dir" "$@" 2>&1 | show_progress "$@"
}
