#!/usr/bin/env bash
# Installs the system packages that are missing (Debian or Ubuntu, as root), or says what is lost without them.
# Quick when nothing is missing.  Usage: scripts/system.sh PYTHON [tests], the latter also for what only tests need
set -u
python="${1:-python3}"
purpose="${2:-}"

# command, package, what is lost without it
wanted=(
  "tshark|tshark|the tests of the Wireshark dissector are skipped"
  "ip|iproute2|no emulated networks; tests that need them are skipped"
  "tc|iproute2|no shaped links; tests that need them are skipped"
  "ethtool|ethtool|offloads of emulated links cannot be switched off"
  "mnexec|mininet|no emulated networks (dlcp testbed); tests that need them are skipped"
  "iperf3|iperf3|TCP cross traffic of the testbed is sent by sockets instead"
  "ping|iputils-ping|emulated networks are not checked before use"
)
if [ "$purpose" = tests ]; then
  wanted+=("chromium|chromium|the tests that look at reports in a browser are skipped")
fi

packages=()
losses=()
need() { # package, loss
  case " ${packages[*]-} " in *" $1 "*) ;; *) packages+=("$1") ;; esac
  losses+=("$1: $2")
}

PATH="$PATH:/usr/sbin:/sbin"
for line in "${wanted[@]}"; do
  IFS='|' read -r command package loss <<<"$line"
  command -v "$command" >/dev/null 2>&1 || need "$package" "$loss"
done
if ! command -v "$python" >/dev/null 2>&1; then
  need "$(basename "$python")" "nothing works without Python 3.11 or newer"
  need "$(basename "$python")-venv" "the virtual environment cannot be made"
elif ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
  # On Debian python3-venv brings the venv module of the default version; others have packages of their own.
  version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  default="$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)"
  if [ "$version" = "$default" ]; then need python3-venv "the virtual environment cannot be made"
  else need "python$version-venv" "the virtual environment cannot be made"; fi
fi

[ ${#packages[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "system packages that are missing (to install them: sudo make system):"
  printf '  %s\n' "${losses[@]}"
  exit 0
fi

echo "installing system packages: ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
install() { apt-get install -y --no-install-recommends "$@" </dev/null >"$log" 2>&1; }
# The lists of packages may be missing or old: fetch them, and go on with what there is if that fails.
apt-get update </dev/null >"$log" 2>&1 || echo "apt-get update failed; going on with the lists that are here"
if ! install "${packages[@]}"; then
  # One that this system does not know must not keep the others away.
  for package in "${packages[@]}"; do
    install "$package" && continue
    tail -n 5 "$log"
    echo "this could not be installed; what is lost:"
    for loss in "${losses[@]}"; do
      case "$loss" in "$package: "*) printf '  %s\n' "$loss" ;; esac
    done
  done
fi
exit 0
