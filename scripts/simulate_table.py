#!/usr/bin/env python3
"""Simulates the switches of plan_table.py on a800x16 and tells how far their programs are from the bound.

Prints a markdown table; --write also puts it into docs/benchmarks.md. Nothing runs, so any build's dynatrain will do.
"""

import argparse
import json
import subprocess
import sys

import dynatrain_runs as runs
from plan_table import DENSE, ORDERS, SWITCHES

SIMULATE_DEADLINE_S = 900  # only ends a run that hangs


def simulate(dynatrain, model, old, new, order, roles, *more):
    suffix = f",zero=1,zero_order={order}"
    command = [dynatrain, "simulate", "--model", model, "--from", old + suffix, "--to", new + suffix, "--topology", "a800x16",
               "--roles", roles, "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SIMULATE_DEADLINE_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def cells(result):
    return [f"{result['bound_seconds']:.3f}", f"{result['fullest_link_seconds']:.3f}", f"{result['seconds']:.3f}",
            f"{result['seconds'] / result['bound_seconds']:.2f}", "yes" if result["relays"] else "no"]


def table(dynatrain, count):
    lines = ["| # | switch | order | identity: bound s | fullest link s | simulated s | simulated / bound | relays "
             "| free: bound s | fullest link s | simulated s | simulated / bound | relays |",
             "|---|---|---|" + ("---:|" * 4 + "---|") * 2]
    for number, (model, what, old, new) in enumerate(SWITCHES[:count], 1):
        name = f"{'D' if model == DENSE else 'M'}{(number - 1) % 8 + 1}"
        for order in ORDERS:
            results = [simulate(dynatrain, model, old, new, order, roles) for roles in ("identity", "free")]
            label = f"{what}: `{old}` to `{new}`" if order == ORDERS[0] else ""
            lines.append("| " + " | ".join([name, label, order.removeprefix("forward-"), *cells(results[0]),
                                            *cells(results[1])]) + " |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dynatrain", required=True, help="the dynatrain program, of any build")
    parser.add_argument("--switches", type=int, default=len(SWITCHES), help="only the first so many")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    text = table(arguments.dynatrain, arguments.switches)
    print(text)
    if arguments.write:
        runs.replace_section(runs.ROOT / "docs/benchmarks.md", "simulate table", text)


if __name__ == "__main__":
    main()
