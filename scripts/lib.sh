# Shared by the scripts in this folder: `. "$(dirname "$0")/lib.sh"`.
# Every script then runs in the repository's root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A module of its own, so that Go never walks build/: data directories of servers
# lie there, with files of guests that end in .go and others that go away meanwhile.
[ -e build/go.mod ] || { mkdir -p build && echo 'module build' >build/go.mod; }

# Python keeps what it compiles, also where the environment says that it keeps
# nothing: most of a start is that otherwise.
unset PYTHONDONTWRITEBYTECODE

# One line a step, with the time it took, so that a long step is seen to move.
step() {
  local title=$1 start=$SECONDS
  shift
  printf '▸ %s\n' "$title"
  if "$@"; then
    printf '✓ %s (%d s)\n' "$title" $((SECONDS - start))
  else
    local code=$?
    printf '✗ %s failed after %d s (exit %d)\n' "$title" $((SECONDS - start)) "$code" >&2
    return "$code"
  fi
}

# stage is step for a function of the script. In one that step calls, a command
# that fails does not end it, because step asks how it went.
stage() {
  local title=$1 start=$SECONDS
  shift
  printf '▸ %s\n' "$title"
  "$@"
  printf '✓ %s (%d s)\n' "$title" $((SECONDS - start))
}

die() {
  printf 'error: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf '  hint: %s\n' "$2" >&2
  exit 1
}

need_root() {
  [ "$(id -u)" = 0 ] || die "this needs root: it makes namespaces, cgroups and mounts" "sudo make $1"
}

# quietly runs a command and shows its output only when it fails.
quietly() {
  local log code
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    rm -f "$log"
  else
    code=$?
    tail -n 60 "$log" >&2
    rm -f "$log"
    return "$code"
  fi
}

# together waits for jobs in the background by their process ids; it fails when
# one of them did.
together() {
  local job failed=0
  for job; do wait "$job" || failed=1; done
  return $failed
}

# lean has Go build programs as those of a release, without cgo, and without the
# tables of debuggers: a fifth less to compile.
lean() { export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -gcflags=all=-dwarf=false -ldflags=-s"; }

# compile runs a command that compiles Go. A compiler of a package ends soon, and
# collects its garbage beyond 1 GiB only: a fourteenth less of processor.
compile() { GOGC=off GOMEMLIMIT=1GiB "$@"; }

# How the tests are built: without debuggers' tables, as in lean, and with the race
# detector, except for SQLite's machine code in Go and the C library below it. The
# detector there would take most of their time and find nothing: the code touches no
# memory of ours, and its locks, which Go's packages around it take, are still watched.
race=(-race -gcflags=all=-dwarf=false)
for unwatched in modernc.org/sqlite/lib modernc.org/libc; do
  race+=("-gcflags=$unwatched=-race=false -d=checkptr=0 -dwarf=false")
done
