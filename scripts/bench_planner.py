#!/usr/bin/env python3
"""Times of the planner: one rank of 16,384, weak scaling, all ranks of 128, a cached plan; medians.

Prints markdown tables; --write also puts them into docs/benchmarks.md.
"""

import argparse
import json
import re
import statistics
import subprocess
from collections import defaultdict

import dynatrain_runs as runs

UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}


def run(program, repetitions):
    """name -> (median CPU ms, counters of the last repetition)"""
    command = [program, f"--benchmark_repetitions={repetitions}", "--benchmark_format=json"]
    entries = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600).stdout)
    samples, last = defaultdict(list), {}
    for entry in entries["benchmarks"]:
        if entry["run_type"] != "iteration":
            continue
        samples[entry["run_name"]].append(entry["cpu_time"] * UNITS[entry["time_unit"]])
        last[entry["run_name"]] = entry
    return {name: (statistics.median(times), last[name]) for name, times in samples.items()}


def argument(name, key):
    found = re.search(rf"{key}:(\d+)", name)
    return int(found.group(1)) if found else None


def pairs_of(results, prefix):
    """For benchmarks with a _Route and a _MapsAndRoute form: rows of (name's arguments, route, maps and route)."""
    for name, route in results.items():
        if name.startswith(f"{prefix}_Route/"):
            yield name, route, results[name.replace("_Route/", "_MapsAndRoute/")]


def one_rank_table(results):
    lines = ["| rank | experts | route | heap | with both shard maps | heap | pieces |", "|---:|---|---:|---:|---:|---:|---:|"]
    for name, (route, counters), (all_of_it, all_counters) in pairs_of(results, "BM_Trillion"):
        stacks = "stacked" if argument(name, "stacks") == 1 else "one by one"
        lines.append(f"| {argument(name, 'rank')} | {stacks} | {route:.2f} ms | {counters['peak_heap_MiB']:.1f} MiB "
                     f"| {all_of_it:.1f} ms | {all_counters['peak_heap_MiB']:.1f} MiB | {counters['pieces']:.0f} |")
    return "\n".join(lines)


def scaling_table(results, prefix, key, title):
    rows = list(pairs_of(results, prefix))
    first = rows[0][1][0]
    lines = [f"| {title} | route | to the first | with both shard maps |", "|---:|---:|---:|---:|"]
    for name, (route, _), (all_of_it, _) in rows:
        lines.append(f"| {argument(name, key)} | {route:.3f} ms | {route / first:.2f}x | {all_of_it:.2f} ms |")
    return "\n".join(lines)


def all_ranks_table(results):
    lines = ["| plan of all 128 ranks | roles | median | pieces | moved |", "|---|---|---:|---:|---:|"]
    for name, (median, counters) in results.items():
        if name.startswith("BM_AllRanks/"):
            roles = "free" if argument(name, "free") == 1 else "identity"
            lines.append(f"| {name.split('/')[1]} | {roles} | {median / 1e3:.2f} s | {counters['pieces']:.0f} "
                         f"| {counters['moved_GB']:.1f} GB |")
    lines.append(f"| a plan from the cache | free | {results['BM_CachedPlan'][0] * 1e3:.1f} us | | |")
    for name, (median, counters) in results.items():
        if name.startswith("BM_ProgramsAndSimulation/"):
            lines.append(f"| {name.split('/')[1]}: compile all programs and simulate them | | {median / 1e3:.2f} s "
                         f"| {counters['messages']:.0f} messages | |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/dev", help="the build folder with bench/planner_bench and bench/plan_bench")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    arguments = parser.parse_args()
    planner = run(f"{arguments.build}/bench/planner_bench", arguments.repetitions)
    plans = run(f"{arguments.build}/bench/plan_bench", arguments.repetitions)
    text = "\n\n".join([
        one_rank_table(planner),
        scaling_table(planner, "BM_LayersAndRanks", "ranks", "ranks, with two layers for each 32 of them"),
        scaling_table(planner, "BM_Dp", "dp", "dp, with tp, pp and zero=0 fixed"),
        all_ranks_table(plans)])
    print(text)
    if arguments.write:
        runs.replace_section(runs.ROOT / "docs/benchmarks.md", "planner", text)


if __name__ == "__main__":
    main()
