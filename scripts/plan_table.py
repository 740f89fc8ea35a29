#!/usr/bin/env python3
"""Plans 8 dense and 8 mixture-of-experts switches on a800x16, with identity and free roles, in two buffer orders.

Prints a markdown table; --write also puts it into docs/benchmarks.md. Nothing runs, so any build's dynatrain will do.
"""

import argparse
import json
import subprocess
import sys

import dynatrain_runs as runs

DENSE = "llama2-70b"
MOE = "qwen3-235b-a22b"
SWITCHES = [
    (DENSE, "TP", "tp=8,pp=4,dp=4", "tp=4,pp=4,dp=8"),
    (DENSE, "PP", "tp=8,pp=8,dp=2", "tp=8,pp=4,dp=4"),
    (DENSE, "DP, 64 to 128", "tp=8,pp=4,dp=2", "tp=8,pp=4,dp=4"),
    (DENSE, "hybrid", "tp=8,pp=4,dp=4", "tp=4,pp=8,dp=4"),
    (DENSE, "hybrid, 64 to 128", "tp=8,pp=8,dp=1", "tp=4,pp=8,dp=4"),
    (DENSE, "DP, 128 to 64", "tp=8,pp=4,dp=4", "tp=8,pp=4,dp=2"),
    (DENSE, "128 to 120", "tp=8,pp=4,dp=4", "tp=8,pp=5,dp=3"),
    (DENSE, "onto other nodes", "tp=8,pp=4,dp=2,ranks=0-63", "tp=8,pp=4,dp=2,ranks=64-127"),
    (MOE, "TP", "tp=4,pp=8,dp=4,ep=8", "tp=2,pp=8,dp=8,ep=8"),
    (MOE, "PP", "tp=4,pp=8,dp=4,ep=8", "tp=4,pp=4,dp=8,ep=8"),
    (MOE, "DP, 64 to 128", "tp=4,pp=8,dp=2,ep=8", "tp=4,pp=8,dp=4,ep=8"),
    (MOE, "EP", "tp=4,pp=8,dp=4,ep=8", "tp=4,pp=8,dp=4,ep=16"),
    (MOE, "hybrid", "tp=4,pp=8,dp=4,ep=8", "tp=2,pp=4,dp=16,ep=16"),
    (MOE, "128 to 64", "tp=4,pp=8,dp=4,ep=8", "tp=4,pp=4,dp=4,ep=16"),
    (MOE, "128 to 120", "tp=4,pp=8,dp=4,ep=8", "tp=4,pp=10,dp=3,ep=12"),
    (MOE, "onto other nodes", "tp=4,pp=8,dp=2,ep=8,ranks=0-63", "tp=4,pp=8,dp=2,ep=8,ranks=64-127"),
]
ORDERS = ["forward-contiguous", "forward-bucketed"]


def plan(dynatrain, model, old, new, order, roles):
    suffix = f",zero=1,zero_order={order}"
    command = [dynatrain, "plan", "--model", model, "--from", old + suffix, "--to", new + suffix,
               "--topology", "a800x16", "--roles", roles, "--no-programs", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def gigabytes(count):
    return f"{count / 1e9:.2f}"


def cells(p):
    return [gigabytes(p["moved_bytes"]), gigabytes(p["cross_node_bytes"]), gigabytes(p["max_node_in_bytes"]),
            f"{p['bound_seconds']:.3f}"]


def saved(identity, free):
    def part(key):
        return "0 %" if identity[key] == 0 else f"{100 * (1 - free[key] / identity[key]):.0f} %"
    return [part("moved_bytes"), part("cross_node_bytes"), part("max_node_in_bytes")]


def table(dynatrain):
    lines = ["| # | switch | order | identity: moved GB | cross-node GB | fullest node GB | bound s "
             "| free: moved GB | cross-node GB | fullest node GB | bound s | free saves: moved, cross, node |",
             "|---|---|---|" + "---:|" * 8 + "---|"]
    for number, (model, what, old, new) in enumerate(SWITCHES, 1):
        name = f"{'D' if model == DENSE else 'M'}{(number - 1) % 8 + 1}"
        for order in ORDERS:
            identity = plan(dynatrain, model, old, new, order, "identity")
            free = plan(dynatrain, model, old, new, order, "free")
            label = f"{what}: `{old}` to `{new}`" if order == ORDERS[0] else ""
            lines.append("| " + " | ".join([name, label, order.removeprefix("forward-"), *cells(identity), *cells(free),
                                            ", ".join(saved(identity, free))]) + " |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dynatrain", required=True, help="the dynatrain program, of any build")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    text = table(arguments.dynatrain)
    print(text)
    if arguments.write:
        runs.replace_section(runs.ROOT / "docs/benchmarks.md", "plan table", text)


if __name__ == "__main__":
    main()
