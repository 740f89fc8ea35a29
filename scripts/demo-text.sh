#!/usr/bin/env bash
# Writes the demo's text, English prose and quotations: Debian's plain-text fortune files in the
# order of their names. Does nothing if the output is already there.
#   demo-text.sh [OUTPUT]     default build/demo/text.txt
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-build/demo/text.txt}
fortunes=${FORTUNES_DIR:-/usr/share/games/fortunes}
[ -s "$output" ] && exit 0

if [ ! -d "$fortunes" ]; then
  echo "demo-text: $fortunes does not exist; install the package fortunes" >&2
  exit 1
fi
mkdir -p "$(dirname "$output")"
# Index files (.dat) and the links to them (.u8) are no text.
find "$fortunes" -maxdepth 1 -type f ! -name '*.*' -print0 | LC_ALL=C sort -z |
  xargs -0 cat > "$output.partial"
if [ ! -s "$output.partial" ]; then
  echo "demo-text: no fortune files in $fortunes; reinstall the package fortunes" >&2
  exit 1
fi
mv "$output.partial" "$output"
