#!/usr/bin/env python3
"""Measured against simulated time on links of a known rate: network namespaces as nodes, token buckets as NICs.

Each node is a network namespace with one link to a bridge; `tc` holds what it sends and what it receives to the rate.
`dynatrain bench` runs one process per rank in them and simulates the same programs over the same links. Needs root
and the programs `ip` and `tc`. Everything it makes is removed again.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import dynatrain_runs as runs

BRIDGE = "dtshape"
SUBNET = "10.213.77"
BENCH_DEADLINE_S = 300  # only ends a run that hangs
TOLERANCE = 0.15
# Of a full packet as token buckets count it, what TCP with timestamps carries for the program.
PAYLOAD = 1448 / 1514


@dataclass(frozen=True)
class Case:
    nodes: int
    ranks_per_node: int
    mbit: int
    old: str
    new: str
    mode: str = "keep"


CASES = [
    Case(2, 1, 200, "dp=1", "dp=1,ranks=1"),
    Case(2, 1, 400, "tp=2,dp=1", "dp=2,zero=1"),
    Case(3, 1, 200, "dp=3,zero=1", "tp=3,dp=1"),
    Case(4, 1, 200, "dp=4,zero=1", "dp=2,zero=1"),
    Case(4, 1, 200, "tp=2,pp=2", "tp=4"),
    Case(2, 2, 200, "tp=2,pp=2", "dp=4,zero=1"),
    Case(4, 1, 200, "dp=4,zero=1", "dp=2,zero=1", "stream"),
]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise runs.RunError(f"{' '.join(command)}: {done.stderr.strip()}")


def shape(device, mbit, namespace=None):
    """What leaves `device` goes at most at this rate."""
    where = ["ip", "netns", "exec", namespace] if namespace else []
    run(*where, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb",
        "latency", "25ms")


@contextlib.contextmanager
def shaped_nodes(count, mbit):
    """Names of network namespaces, each with an interface `eth0` of this rate in either direction."""
    names = [f"{BRIDGE}{i}" for i in range(count)]
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{SUBNET}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for i, name in enumerate(names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{name}h", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{name}h", "master", BRIDGE, "up")
            run("ip", "-n", name, "address", "add", f"{SUBNET}.{10 + i}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            shape("eth0", mbit, name)
            shape(f"{name}h", mbit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", f"{name}h"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


def write_topology(path, case, intra_bytes_per_s):
    path.write_text(json.dumps({
        "name": "shaped", "nodes": case.nodes, "ranks_per_node": case.ranks_per_node,
        "intra_node_bytes_per_s": intra_bytes_per_s, "nics_per_node": 1, "nic_bytes_per_s": PAYLOAD * case.mbit * 1e6 / 8}))


def measure(args, case, folder):
    topology = folder / "topology.json"
    write_topology(topology, case, args.intra_bytes_per_s)
    with shaped_nodes(case.nodes, case.mbit) as names:
        command = [str(args.dynatrain), "bench", "--model", args.model, "--state", args.state, "--from", case.old, "--to",
                   case.new, "--nproc", str(case.nodes * case.ranks_per_node), "--mode", case.mode, "--repeat",
                   str(args.repeat), "--topology", str(topology), "--namespaces", "+".join(names), "--interface", "eth0",
                   "--bind", f"{SUBNET}.1:0", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BENCH_DEADLINE_S, check=False)
    if done.returncode != 0:
        raise runs.RunError(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dynatrain", type=Path, default=runs.ROOT / "build/dev/bin/dynatrain")
    parser.add_argument("--model", default="llama2-7b", help="narrowed to --state")
    parser.add_argument("--state", default="64MiB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--intra-bytes-per-s", type=float, default=1e9, help="of ranks of one node")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    args = parser.parse_args()
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        print("shaped_links: network namespaces and tc need root and the programs ip and tc", file=sys.stderr)
        return 2
    rows = [("nodes", "rate", "change", "mode", "moved", "measured", "simulated", "simulated / measured")]
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="dynatrain-shape-") as folder:
        for case in CASES[:args.cases]:
            try:
                result = measure(args, case, Path(folder))
            except (runs.RunError, subprocess.TimeoutExpired) as error:
                runs.fail(f"shaped_links: {error}")
            ratio = result["predicted_over_measured"]
            worst = max(worst, abs(ratio - 1))
            rows.append((f"{case.nodes} x {case.ranks_per_node}", f"{case.mbit} Mbit/s", f"`{case.old}` -> `{case.new}`",
                         case.mode, runs.mb(result["moved_bytes"]), runs.ms(result["seconds_median"]),
                         runs.ms(result["predicted_seconds"]), f"{ratio:.2f}"))
            print(" | ".join(rows[-1]), flush=True)
    print("\n" + runs.markdown_table(rows))
    print(f"\nfarthest from 1: {worst:.2f}; {TOLERANCE} is allowed")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
