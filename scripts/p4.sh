#!/bin/sh
# Compiles p4/dlcp.p4: scripts/p4.sh [DIRECTORY], by default into p4/build, where the result is committed together with a digest of
# the sources. The result is the same on every machine.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${1:-p4/build}"
out=$(cd "${1:-p4/build}" && pwd)
if ! command -v p4c-bm2-ss >/dev/null; then
  echo "p4c-bm2-ss is not on PATH: build https://github.com/p4lang/p4c, or do with the compiled program in p4/build" >&2
  exit 3
fi
cd p4
# Of a table with an action selector p4c always says that its default action is not supported, though the program gives it none: the
# three lines about `paths` are expected, anything else is an error.
messages=$out/messages
trap 'rm -f "$messages"' EXIT
p4c-bm2-ss --std p4-16 --Werror dlcp.p4 -o "$out/dlcp.json" --p4runtime-files "$out/dlcp.p4info.txtpb" 2>"$messages" ||
  { cat "$messages" >&2; exit 1; }
if sed '/Target does not support default_action for SwitchIngress.spraying.paths/,+2d' "$messages" | grep . >&2; then
  exit 1
fi
# Where in the sources each thing stands is a third of the program's bytes, which travel to every switch.
python3 - "$out/dlcp.json" <<'END'
import json, pathlib, sys

def bare(tree):
    if isinstance(tree, dict):
        return {key: bare(value) for key, value in tree.items() if key != "source_info"}
    return [bare(value) for value in tree] if isinstance(tree, list) else tree

path = pathlib.Path(sys.argv[1])
path.write_text(json.dumps(bare(json.loads(path.read_text())), indent=1) + "\n")
END
{
  echo "# $(p4c-bm2-ss --version 2>&1 | grep -o 'Version [0-9.]*')"
  sha256sum ./*.p4 | sed 's|\./||'
} > "$out/sources.sha256"
