#!/usr/bin/env python3
"""Checks that the Gloo shim's object takes Gloo only by reference.

usage: check_shim_symbols.py NM OBJECT

The object may refer to what libtorch exports. It may define no name of Gloo's, hold or refer to no vtable or
type information of Gloo's or of torch's Gloo group: those would be built from stand-in headers.
"""
import re
import subprocess
import sys

GLOO = re.compile(r"^(vtable for |typeinfo( name)? for |VTT for )?(non-virtual thunk to )?gloo::")
VIRTUAL = re.compile(r"^(vtable|typeinfo|typeinfo name|VTT) for .*(gloo::|Gloo)")


def problems(nm_output):
    for line in nm_output.splitlines():
        match = re.match(r"^[0-9a-f]* *([A-Za-z]) (.*)$", line)
        if not match:
            continue
        kind, name = match.groups()
        if VIRTUAL.match(name):
            yield f"virtual table or type information: {name}"
        elif GLOO.match(name):
            yield f"{'refers to' if kind == 'U' else 'defines'} {name}"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    nm, path = sys.argv[1:]
    output = subprocess.run([nm, "-C", path], check=True, capture_output=True, text=True).stdout
    if "c10d::ProcessGroupGloo::ProcessGroupGloo(" not in output:
        sys.exit(f"{path} does not make a ProcessGroupGloo: is it the shim's object?")
    found = list(problems(output))
    for problem in found:
        print(f"{path}: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
