"""The tables of `dynatrain bench`: moves of at least 1 GiB of state against the raw rate of the transport."""

import json
import re
import subprocess
from dataclasses import dataclass

import dynatrain_runs as runs

GIB = 1 << 30
BENCH_DEADLINE_S = 900  # only ends a run that hangs


@dataclass(frozen=True)
class Move:
    model: str
    old: str
    new: str
    nproc: int


MOVES = [
    Move("llama2-7b", "dp=2,zero=1", "tp=2,zero=1", 2),
    Move("llama2-7b", "dp=4,zero=1", "dp=2,zero=1", 4),
    Move("llama2-7b", "tp=2,dp=2,zero=1", "tp=4,zero=1", 4),
    Move("llama2-7b", "tp=2,pp=2,zero=1", "pp=4,zero=1", 4),
    Move("qwen3-30b-a3b", "pp=2,dp=2,ep=2,zero=1", "dp=4,ep=4,zero=1", 4),
    Move("llama2-7b", "tp=2,pp=2,dp=2,zero=1", "pp=4,dp=2,zero=1", 8),
    Move("llama2-7b", "tp=2,ranks=0-1", "tp=2,ranks=2-3", 4),  # nothing stays: all bytes go over the wire
]
# Of the state: 1/16 and 1/64.
BUDGETS = [16, 64]


def bench(dynatrain, move, state, repeat, *more):
    command = [str(dynatrain), "bench", "--model", move.model, "--state", str(state), "--from", move.old, "--to", move.new,
               "--nproc", str(move.nproc), "--repeat", str(repeat), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BENCH_DEADLINE_S, check=False)
    if done.returncode != 0:
        raise runs.RunError(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def name_of(move):
    return f"{move.model}, `{move.old}` -> `{move.new}`, {move.nproc} ranks"


def spread(result, name):
    return (f"{runs.ms(result[name + '_median' if name == 'seconds' else name])} "
            f"({runs.ms(result[name + '_min'])} - {runs.ms(result[name + '_max'])})")


def share(result, *names):
    return f"{100 * sum(result[n + '_seconds'] for n in names) / result['seconds_median']:.0f} %"


def cpu_over_limit(result):
    return f"{result['cpu_seconds'] / result['limit_cpu_seconds']:.2f}"


def limit_table(dynatrain, state, repeat, moves):
    rows = [("change", "state", "moved", "time: median (min - max)", "limit", "time / limit", "the same, `--verify off`",
             "processor time / limit's", "the same, `--verify off`", "pack, unpack, copy", "check", "predicted / measured")]
    for move in moves:
        r = bench(dynatrain, move, state, repeat)
        unchecked = bench(dynatrain, move, state, repeat, "--verify", "off")
        rows.append((name_of(move), runs.mb(r["state_bytes"]), runs.mb(r["moved_bytes"]), spread(r, "seconds"),
                     spread(r, "limit_seconds"), f"{r['achieved_over_limit']:.2f}", f"{unchecked['achieved_over_limit']:.2f}",
                     cpu_over_limit(r), cpu_over_limit(unchecked), share(r, "pack", "unpack", "copy"),
                     share(r, "check"), f"{r['predicted_over_measured']:.2f}"))
        print("  " + " | ".join(rows[-1]), flush=True)
    return runs.markdown_table(rows)


def budget_table(dynatrain, state, repeat, moves):
    rows = [("change", "budget", "phases", "peak extra: stated", "measured", "time: median (min - max)",
             "time / time without a budget")]
    for move in moves:
        unlimited = bench(dynatrain, move, state, repeat, "--mode", "stream")
        for part in [None, *BUDGETS]:
            budget = unlimited["state_bytes"] // part if part else None
            budget_text = f"1/{part} of the state: {runs.mb(budget)}" if part else "none"
            try:
                r = bench(dynatrain, move, state, repeat, "--mode", "stream", "--budget", str(budget)) if part else unlimited
                rows.append((name_of(move), budget_text, str(r["phases"]), runs.mb(r["peak_extra_bytes"]),
                             runs.mb(r["measured_peak_extra_bytes"]), spread(r, "seconds"),
                             f"{r['seconds_median'] / unlimited['seconds_median']:.2f}"))
            except runs.RunError as error:
                least = re.search(r"(\d+) bytes would do", str(error))
                if not least:
                    raise
                rows.append((name_of(move), budget_text, "", f"refused: {runs.mb(int(least[1]))} would do", "", "", ""))
            print("  " + " | ".join(rows[-1]), flush=True)
    return runs.markdown_table(rows)


def tables(dynatrain, state, repeat, count):
    moves = MOVES[:count]
    limits = limit_table(dynatrain, state, repeat, moves)
    budgets = budget_table(dynatrain, state, repeat, moves[1:4] + moves[5:6])
    return (f"Measured on {runs.machine()}; Gloo over loopback, `--verify moved`, {repeat} passes after one that is not "
            f"counted; models narrowed to at most {runs.mb(state)} of state (bf16 parameters, fp32 masters and moments).\n\n"
            f"Mode `keep`, against the raw exchange of the same bytes between the same pairs, pass by pass in one run:\n\n"
            f"{limits}\n\nMode `stream`, within memory budgets (bytes above the larger of old and new state, of the rank that "
            f"needs most):\n\n{budgets}")
