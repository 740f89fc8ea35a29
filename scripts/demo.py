#!/usr/bin/env python3
"""The main job, end to end: a language model trains on real text while its layout changes eight times under it,
then one of the changes is made the usual way, by stopping and restarting. Everything told is measured in this run."""

import argparse
import time
from pathlib import Path

import dynatrain_runs as runs
import state_geometry as geometry

STEPS = 200
REQUESTS = [15, 40, 65, 90, 115, 140, 165, 180]  # the step after which each change is asked for
OUTSIDE = 6  # index of the change that `dynatrain switch` asks for
JOB_DEADLINE_S = 600  # only ends a run that hangs
RESTART_STEPS = 12


def run_live(dynatrain, flags):
    """The job with all its switches; one is requested from outside while it runs."""
    port = runs.free_port()
    arguments = [*flags, "--layout", runs.FIRST_LAYOUT, "--nproc", "8", "--steps", str(STEPS), "--verify", "full",
                 "--control", f"127.0.0.1:{port}"]
    for index, ((_, spec), step) in enumerate(zip(runs.CHANGES, REQUESTS)):
        if index != OUTSIDE:
            arguments += ["--switch", f"{step}:{spec}"]
    with runs.Job(dynatrain, arguments, JOB_DEADLINE_S) as job:
        job.wait_until(lambda e: e["event"] == "step" and e["step"] >= REQUESTS[OUTSIDE])
        print(f"$ {dynatrain} switch --job 127.0.0.1:{port} {runs.CHANGES[OUTSIDE][1]}", flush=True)
        runs.ask_for_switch(dynatrain, port, runs.CHANGES[OUTSIDE][1], timeout_s=100)
        job.finish()
    return job


def check_live(job, parameters):
    """Prints the table of switches; returns what is wrong."""
    problems = runs.step_problems(job, STEPS)
    switches = sorted(job.of("switch"), key=lambda e: e["id"])
    if len(switches) != len(runs.CHANGES):
        problems.append(f"{len(switches)} switches, expected {len(runs.CHANGES)}")
    outside = runs.asked_from_outside(job)
    by_others = [runs.change_to(switch["to"]) for switch in switches if switch["id"] in outside]
    if by_others != [runs.CHANGES[OUTSIDE][0]]:
        problems.append(f"asked for from outside: {by_others}, expected only {runs.CHANGES[OUTSIDE][0]!r}")
    rows = [("#", "after step", "change", "new layout", "moved", "minimum", "kept", "pause", "prepared in", "state")]
    for switch in switches:
        minimum = runs.minimum_of(switch, parameters)
        wrong = runs.switch_problems(switch, minimum)
        problems += [f"switch {switch['id']}: {problem}" for problem in wrong]
        what = runs.change_to(switch["to"]) + ("; asked for from outside" if switch["id"] in outside else "")
        rows.append((switch["id"], switch["step"], what, switch["to"], runs.mb(switch["moved_bytes"]),
                     runs.mb(minimum.moved_bytes), runs.mb(switch["kept_bytes"]), runs.ms(switch["pause_seconds"]),
                     runs.ms(switch["prepare_seconds"]), "WRONG" if wrong else "identical"))
    print(f"\n{runs.table(rows)}\n")
    losses = [event["loss"] for event in job.of("step")]
    if losses and not sum(losses[-10:]) < 0.8 * sum(losses[:10]):
        problems.append(f"the loss did not fall: {losses[0]:.4f} to {losses[-1]:.4f}")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps; 'identical': the digest of all state is "
          "the same before and after,\nall replicas agree, and the bytes moved are the least possible (counted "
          "element by element, independently).\n")
    return problems


def compare_pauses(job, restart):
    """Prints both pauses by component; returns what is wrong."""
    old, new = (geometry.parse_layout(spec) for spec in runs.RESTART_PAIR)
    live = [s for s in job.of("switch")
            if (geometry.parse_layout(s["from"]), geometry.parse_layout(s["to"])) == (old, new)]
    if not live:
        return [f"no switch {runs.RESTART_PAIR[0]} -> {runs.RESTART_PAIR[1]} to compare with"]
    switch = live[0]
    print(f"The same change both ways: {runs.RESTART_PAIR[0]} -> {runs.RESTART_PAIR[1]}\n")
    parts = ["execute", "verify", "decide", "activate"]
    rows = [("live switch", "pause", "move", *parts[1:], "prepared before, in", "which slowed training by"),
            ("", runs.ms(switch["pause_seconds"]), *(runs.ms(switch[f"{part}_seconds"]) for part in parts),
             runs.ms(switch["prepare_seconds"]), runs.ms(runs.preparation_cost(job, switch)))]
    print(runs.table(rows) + "\n")
    parts = ["save", "exit", "start", "groups", "load", "build", "other"]
    rows = [("stop and restart", "pause", *parts),
            ("", runs.ms(restart.pause), *(runs.ms(getattr(restart, part)) for part in parts))]
    print(runs.table(rows) + "\n")
    pause = switch["pause_seconds"]
    print(f"ratio: {restart.pause / pause:.1f}x with process exit and start, "
          f"{restart.without_process_start / pause:.1f}x without\n"
          "(live: with --verify full, all state checked inside the pause; restart: saved to memory, not checked.\n"
          "Parts are each the maximum over ranks, which wait for one another, so they need not add up.)\n")
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dynatrain", type=Path, default=runs.ROOT / "build/dev/bin/dynatrain")
    parser.add_argument("--data", type=Path, default=runs.TEXT)
    args = parser.parse_args()
    runs.end_cleanly_when_terminated()
    began = time.monotonic()
    parameters = geometry.llama_parameters(geometry.TINY_LLAMA)
    print(f"tiny-llama, {sum(p.elems for p in parameters):,} parameters, on {args.data}; up to 8 processes on "
          f"{runs.machine()}\n", flush=True)
    try:
        flags = runs.training_flags(args.data)
        job = run_live(args.dynatrain, flags)
        problems = check_live(job, parameters)
        with runs.scratch_directory("dynatrain-demo-") as scratch:
            place = "memory (/dev/shm)" if scratch.is_relative_to("/dev/shm") else f"{scratch}, which may be a disk"
            print(f"Now by stop and restart, saving to {place} ...\n", flush=True)
            restart = runs.measure_restart(args.dynatrain, flags, *runs.RESTART_PAIR, RESTART_STEPS, scratch)
        problems += compare_pauses(job, restart)
    except runs.RunError as error:
        runs.fail(f"demo: {error}")
    except KeyboardInterrupt:
        runs.fail("demo: interrupted")
    if problems:
        runs.fail("demo: FAILED\n" + "\n".join(f"  {problem}" for problem in problems))
    print(f"demo: {len(job.of('switch'))} switches committed, nothing lost, no process left; "
          f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
