#!/usr/bin/env python3
"""Live switches against stop-and-restart, and moves of state against the raw rate of the transport; medians and ratios.

Prints markdown tables; --write also puts them into docs/benchmarks.md.
"""

import argparse
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import dynatrain_runs as runs
import move_benchmarks
import state_geometry as geometry

PAIRS = [
    runs.RESTART_PAIR,
    ("dp=4,zero=1", "dp=2,zero=1"),
    ("tp=2,dp=2,zero=1", "tp=4,dp=1,zero=1"),
]
STEPS_BETWEEN = 8  # more than the five first steps that a switch's report waits for
RESTART_STEPS = 8
JOB_DEADLINE_S = 600  # only ends a run that hangs
LIVE_PARTS = ["execute_seconds", "verify_seconds", "decide_seconds", "activate_seconds"]
RESTART_PARTS = ["save", "exit", "start", "groups", "load", "build", "other"]


@dataclass
class Samples:
    live: list = field(default_factory=list)  # switch events old -> new, with "preparation_cost" in seconds
    restarts: list = field(default_factory=list)
    moved_bytes: int = 0


def live_switches(dynatrain, flags, pair, verify):
    """One job: old -> new -> old -> new; the events of the two changes old -> new."""
    old, new = pair
    changes = [new, old, new]
    requests = [4 + i * STEPS_BETWEEN for i in range(len(changes))]
    arguments = [*flags, "--layout", old, "--steps", str(requests[-1] + STEPS_BETWEEN), "--verify", verify]
    for step, spec in zip(requests, changes):
        arguments += ["--switch", f"{step}:{spec}"]
    job = runs.run_job(dynatrain, arguments, JOB_DEADLINE_S)
    switches = sorted(job.of("switch"), key=lambda event: event["id"])
    if [s["outcome"] for s in switches] != ["committed"] * len(changes):
        raise runs.RunError(f"{old} -> {new}: outcomes {[(s['outcome'], s['reason']) for s in switches]}")
    return [{**s, "preparation_cost": runs.preparation_cost(job, s)} for s in (switches[0], switches[2])]


def measure(dynatrain, flags, pair, repeats, verify):
    samples = Samples()
    for repeat in range(repeats + 1):
        live = live_switches(dynatrain, flags, pair, verify)
        with runs.scratch_directory("dynatrain-bench-") as scratch:
            restart = runs.measure_restart(dynatrain, flags, *pair, RESTART_STEPS, scratch)
        print(f"  {pair[0]} -> {pair[1]}  #{repeat}: live {', '.join(runs.ms(s['pause_seconds']) for s in live)}   "
              f"restart {runs.ms(restart.pause)}" + ("   (not counted)" if repeat == 0 else ""), flush=True)
        if repeat > 0:
            samples.live += live
            samples.restarts.append(restart)
            samples.moved_bytes = live[0]["moved_bytes"]
    return samples


def median_of(items, get):
    return statistics.median(get(item) for item in items)


def spread_of(items, get):
    values = [get(item) for item in items]
    return f"{runs.ms(statistics.median(values))} ({runs.ms(min(values))} - {runs.ms(max(values))})"


def tables(results, repeats, verify, state_bytes):
    rows = [("change", "moved", "live pause: median (min - max)", "restart: median (min - max)", "ratio",
             "ratio without process exit and start")]
    live_rows = [("change", "move", "verify", "decide", "activate", "prepared in, while training", "which slowed it by",
                  "first new step's excess")]
    restart_rows = [("change", *RESTART_PARTS)]
    for (old, new), samples in results.items():
        name = f"`{old}` -> `{new}`"
        live, restarts = samples.live, samples.restarts
        pause = median_of(live, lambda s: s["pause_seconds"])
        rows.append((name, runs.mb(samples.moved_bytes), spread_of(live, lambda s: s["pause_seconds"]),
                     spread_of(restarts, lambda r: r.pause), f"{median_of(restarts, lambda r: r.pause) / pause:.0f}x",
                     f"{median_of(restarts, lambda r: r.without_process_start) / pause:.1f}x"))
        live_rows.append((name, *(runs.ms(median_of(live, lambda s, p=part: s[p])) for part in LIVE_PARTS),
                          runs.ms(median_of(live, lambda s: s["prepare_seconds"])),
                          runs.ms(median_of(live, lambda s: s["preparation_cost"])),
                          runs.ms(median_of(live, lambda s: s["first_step_excess_seconds"]))))
        restart_rows.append((name, *(runs.ms(median_of(restarts, lambda r, p=part: getattr(r, p)))
                                     for part in RESTART_PARTS)))
    counts = f"{2 * repeats} live switches and {repeats} restarts each, interleaved, after one uncounted pass of both"
    return (f"Measured on {runs.machine()}; tiny-llama, {runs.mb(state_bytes)} of state (unsharded), gloo over loopback, "
            f"--verify {verify}; {counts}.\n\n{runs.markdown_table(rows)}\n\nThe live pause by component (medians):\n\n"
            f"{runs.markdown_table(live_rows)}\n\nThe restart by component (medians; checkpoint in memory):\n\n"
            f"{runs.markdown_table(restart_rows)}")


def switch_tables(args):
    parameters = geometry.llama_parameters(geometry.TINY_LLAMA)
    state_bytes = sum(p.elems for p in parameters) * len(geometry.KINDS) * geometry.ELEM_BYTES
    flags = runs.training_flags(args.data)
    results = {pair: measure(args.dynatrain, flags, pair, args.repeats, args.verify) for pair in PAIRS[:args.pairs]}
    return tables(results, args.repeats, args.verify, state_bytes)


def show(args, section, text):
    print("\n" + text + "\n")
    if args.write:
        runs.replace_section(runs.ROOT / "docs/benchmarks.md", section, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dynatrain", type=Path, default=runs.ROOT / "build/dev/bin/dynatrain")
    parser.add_argument("--data", type=Path, default=runs.TEXT)
    parser.add_argument("--repeats", type=int, default=7, help="restarts per change; twice as many live switches")
    parser.add_argument("--pairs", type=int, default=len(PAIRS), help="only the first so many changes")
    parser.add_argument("--verify", default="moved", choices=("off", "moved", "full"))
    parser.add_argument("--only", choices=("switches", "moves"), help="one of the two halves")
    parser.add_argument("--move-state", type=int, default=3 * move_benchmarks.GIB // 2, help="bytes of state in moves")
    parser.add_argument("--moves", type=int, default=len(move_benchmarks.MOVES), help="only the first so many moves")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    args = parser.parse_args()
    runs.end_cleanly_when_terminated()
    try:
        if args.only != "moves":
            show(args, "results", switch_tables(args))
        if args.only != "switches":
            show(args, "moves", move_benchmarks.tables(args.dynatrain, args.move_state, args.repeats, args.moves))
    except runs.RunError as error:
        runs.fail(f"bench: {error}")
    except KeyboardInterrupt:
        runs.fail("bench: interrupted")


if __name__ == "__main__":
    main()
