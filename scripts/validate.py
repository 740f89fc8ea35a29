#!/usr/bin/env python3
"""Shows that switching changes nothing but the layout, and writes the evidence to docs/validation.md.

State: what is dumped just before and just after every switch of the demo is compared element by element
(compare_state.py), and the comparison must find planted faults. Loss: the same training runs in every layout of
the demo without a switch, and once with all switches; see docs/validation.md for the protocol.
"""

import argparse
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import compare_state
import dynatrain_runs as runs
import loss_chart
import state_geometry as geometry

FLOOR = 1e-6  # relative; what fp32 sums in another order may differ by in a single evaluation
JOB_DEADLINE_S = 600  # only ends a run that hangs
SELF_TEST_SWITCH = 1  # its dump is kept until faults were planted in copies of it


@dataclass(frozen=True)
class Plan:
    steps: int
    changes: list  # (what, SPEC)
    first_request: int
    spacing: int
    static: list  # SPECs of the runs without a switch; the first is the elastic run's first layout

    def requests(self):
        return [self.first_request + i * self.spacing for i in range(len(self.changes))]


def full_plan():
    specs = [runs.FIRST_LAYOUT] + [spec for _, spec in runs.CHANGES]
    return Plan(steps=64, changes=runs.CHANGES, first_request=4, spacing=7, static=list(dict.fromkeys(specs)))


def quick_plan():
    changes = [runs.CHANGES[i] for i in (0, 1, 2, 4)]
    return Plan(steps=24, changes=changes, first_request=2, spacing=5,
                static=[runs.FIRST_LAYOUT, changes[0][1], changes[1][1]])


def relative(a, b):
    return abs(a - b) / max(abs(a), abs(b))


def losses_of(job):
    return [event["loss"] for event in job.of("step")]


def run_static(dynatrain, flags, plan):
    """{SPEC: losses by step} of the runs without a switch."""
    curves = {}
    for spec in plan.static:
        began = time.monotonic()
        job = runs.run_job(dynatrain, [*flags, "--layout", spec, "--steps", str(plan.steps)], JOB_DEADLINE_S)
        if problems := runs.step_problems(job, plan.steps):
            raise runs.RunError(f"static run in {spec}: {problems}")
        curves[spec] = losses_of(job)
        print(f"static   {spec:<62} last loss {curves[spec][-1]:.6f}   {time.monotonic() - began:.0f} s", flush=True)
    return curves


@dataclass
class Elastic:
    losses: list
    switches: list
    probes: dict  # (switch id, "before" | "after") -> loss
    comparisons: list
    faults: dict  # planted fault -> whether the comparison found it


def run_elastic(dynatrain, flags, plan, scratch):
    """The run with all switches; state is compared, and deleted, as it comes."""
    dump = scratch / "dump"
    arguments = [*flags, "--layout", runs.FIRST_LAYOUT, "--steps", str(plan.steps), "--verify", "full",
                 "--probe-loss", "--dump-state", str(dump)]
    for step, (_, spec) in zip(plan.requests(), plan.changes):
        arguments += ["--switch", f"{step}:{spec}"]
    comparisons = []
    with runs.Job(dynatrain, arguments, JOB_DEADLINE_S, quiet=True) as job:
        while (event := job.next_event()) is not None:
            if event["event"] != "switch" or event["outcome"] != "committed":
                continue
            comparison = compare_state.compare_switch(dump, event["id"])
            print(comparison.summary(), flush=True)
            comparison.before.forget()
            comparison.after.forget()
            comparisons.append(comparison)
            if event["id"] != SELF_TEST_SWITCH:
                for when in ("before", "after"):
                    shutil.rmtree(dump / f"switch-{event['id']}-{when}")
        job.finish()
    faults = compare_state.self_test(dump, seed=1)
    if problems := runs.step_problems(job, plan.steps):
        raise runs.RunError(f"elastic run: {problems}")
    probes = {(event["switch"], event["when"]): event["loss"] for event in job.of("probe")}
    switches = sorted(job.of("switch"), key=lambda event: event["id"])
    return Elastic(losses_of(job), switches, probes, comparisons, faults)


def only_pp_changes(switch):
    old, new = (geometry.parse_layout(switch[key]) for key in ("from", "to"))
    return (old.tp, old.dp, old.zero) == (new.tp, new.dp, new.zero) and old.pp != new.pp


def check_state(elastic, plan, parameters):
    problems = []
    if len(elastic.switches) != len(plan.changes):
        problems.append(f"{len(elastic.switches)} switches, expected {len(plan.changes)}")
    for switch in elastic.switches:
        wrong = runs.switch_problems(switch, runs.minimum_of(switch, parameters))
        problems += [f"switch {switch['id']}: {problem}" for problem in wrong]
    for comparison in elastic.comparisons:
        problems += comparison.problems[:compare_state.SHOWN_DIFFERENCES]
    problems += [f"planted fault not found: {what}" for what, found in elastic.faults.items() if not found]
    return problems


def check_probes(elastic):
    """[(switch, before, after, relative difference)], problems."""
    rows, problems = [], []
    for switch in elastic.switches:
        before, after = (elastic.probes.get((switch["id"], when)) for when in ("before", "after"))
        if before is None or after is None:
            problems.append(f"switch {switch['id']}: no loss of the fixed batch")
            continue
        difference = relative(before, after)
        rows.append((switch, before, after, difference))
        if difference > FLOOR:
            problems.append(f"switch {switch['id']}: loss of the fixed batch {before!r} before, {after!r} after")
        if only_pp_changes(switch) and before != after:
            problems.append(f"switch {switch['id']}: only pp changes, yet {before!r} before and {after!r} after")
    return rows, problems


@dataclass(frozen=True)
class LossResult:
    spread: float  # E: largest relative difference at the same step between static runs
    spread_step: int
    differences: list  # of the elastic run from the static one, by step
    bound: float

    @property
    def worst(self):
        return max(self.differences)


def compare_losses(curves, elastic, plan):
    by_step = list(zip(*curves.values()))
    spreads = [relative(max(losses), min(losses)) for losses in by_step]
    spread = max(spreads)
    differences = [relative(a, b) for a, b in zip(elastic.losses, curves[plan.static[0]])]
    return LossResult(spread, spreads.index(spread) + 1, differences, 2 * spread + FLOOR)


def report(plan, curves, elastic, losses, probe_rows, parameters):
    rows = [("switch", "what changes", "from", "to", "elements compared", "different", "moved = minimum",
             "fixed batch before", "after", "relative")]
    for comparison, (switch, before, after, difference) in zip(elastic.comparisons, probe_rows):
        layouts = [f"`{switch[key]}`" for key in ("from", "to")]
        rows.append((switch["id"], runs.change_to(switch["to"]), *layouts, f"{comparison.elems:,}",
                     len(comparison.problems), runs.mb(switch["moved_bytes"]), f"{before:.9g}", f"{after:.9g}",
                     "bit-equal" if before == after else f"{difference:.1e}"))
    static_rows = [("static run in", "first loss", "last loss")]
    static_rows += [(f"`{spec}`", f"{curve[0]:.7f}", f"{curve[-1]:.7f}") for spec, curve in curves.items()]
    faults = "\n".join(f"  - {what}: {'found' if found else 'NOT FOUND'}" for what, found in elastic.faults.items())
    static_rows.append(("elastic, all switches", f"{elastic.losses[0]:.7f}", f"{elastic.losses[-1]:.7f}"))
    return f"""Measured on {runs.machine()}; tiny-llama with {sum(p.elems for p in parameters):,} parameters, {plan.steps} steps.

{runs.markdown_table(rows)}

{runs.markdown_table(static_rows)}

- E, the largest relative difference at one step between static runs: **{losses.spread:.2e}** (step {losses.spread_step}).
- Largest relative difference of the elastic run from the static run in its first layout: **{losses.worst:.2e}**
  (step {losses.differences.index(losses.worst) + 1}); allowed are 2E + 1e-6 = {losses.bound:.2e}.
- Planted faults, each in a copy of a dump:
{faults}

![loss curves and differences](loss.svg)"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dynatrain", type=Path, default=runs.ROOT / "build/dev/bin/dynatrain")
    parser.add_argument("--data", type=Path, default=runs.TEXT)
    parser.add_argument("--quick", action="store_true", help="fewer steps, layouts and switches; writes no documents")
    args = parser.parse_args()
    runs.end_cleanly_when_terminated()
    began = time.monotonic()
    plan = quick_plan() if args.quick else full_plan()
    parameters = geometry.llama_parameters(geometry.TINY_LLAMA)
    try:
        flags = runs.training_flags(args.data)
        with runs.scratch_directory("dynatrain-validate-") as scratch:
            elastic = run_elastic(args.dynatrain, flags, plan, scratch)
        curves = run_static(args.dynatrain, flags, plan)
    except (runs.RunError, compare_state.StateError) as error:
        runs.fail(f"validate: {error}")
    except KeyboardInterrupt:
        runs.fail("validate: interrupted")
    losses = compare_losses(curves, elastic, plan)
    probe_rows, problems = check_probes(elastic)
    problems += check_state(elastic, plan, parameters)
    if losses.worst > losses.bound:
        problems.append(f"the elastic loss differs by {losses.worst:.2e} from the static one, more than {losses.bound:.2e}")
    text = report(plan, curves, elastic, losses, probe_rows, parameters)
    print(text)
    if problems:
        runs.fail("validate: FAILED\n" + "\n".join(f"  {problem}" for problem in problems))
    if not args.quick:
        runs.replace_section(runs.ROOT / "docs/validation.md", "results", text)
        chart = loss_chart.draw(curves, elastic.losses, losses.differences, losses.bound,
                                [(s["step"], s["to"]) for s in elastic.switches])
        (runs.ROOT / "docs/loss.svg").write_text(chart)
    print(f"validate: passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
