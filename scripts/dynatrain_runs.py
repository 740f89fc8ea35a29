"""Runs of the dynatrain program for the demo, validation and benchmarks. Standard library only.

Times are seconds on the host's monotonic clock, the same here (time.monotonic) as in the program's events.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import state_geometry as geometry

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "build/demo/text.txt"
LAST_LINES_SHOWN = 25
NO_DIGEST = "0" * 16  # told where none was asked for

# The layouts of the demo and what changes between one and the next. Eight processes, seven layers.
FIRST_LAYOUT = "pp=2,dp=2,zero=1"
RESTART_PAIR = ("tp=2,pp=2,dp=2,zero=1", "pp=3,dp=2,split=3+3+1,zero=1")
CHANGES = [
    ("TP only, 4 to 8 ranks", RESTART_PAIR[0]),
    ("TP and PP at once, world of 6, uneven stages", RESTART_PAIR[1]),
    ("PP only, shrink to 2 ranks", "dp=2,zero=1"),
    ("DP only, grow to 4 ranks", "dp=4,zero=1"),
    ("TP, PP and DP at once, other buffer order", "tp=4,pp=2,dp=1,zero=1,zero_order=reverse-contiguous-endx:256"),
    ("world of 3, uneven stages, named ranks", "pp=3,dp=1,split=2+4+1,ranks=1+4+6"),
    ("TP and DP, grow to 8 ranks, ZeRO on", "tp=2,dp=4,zero=1"),
    ("DP and ZeRO, shrink to other ranks", "tp=2,dp=2,ranks=4-7"),
]


class RunError(Exception):
    """A run that did not do what it must; the message is for the user."""


def training_flags(data=TEXT, seq=128, seed=1):
    return ["--model", "tiny-llama", "--data", str(text_for(data)), "--global-batch", "8", "--micro-batch", "2",
            "--seq", str(seq), "--lr", "1e-3", "--seed", str(seed)]


def text_for(data):
    """The path; the demo's own text is made if it is not there yet."""
    if data == TEXT and not TEXT.exists() and subprocess.run([ROOT / "scripts/demo-text.sh"]).returncode != 0:
        raise RunError(f"cannot make {TEXT}")
    return data


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def scratch_directory(prefix):
    """On tmpfs where there is one; removed at the end."""
    shm = Path("/dev/shm")
    where = shm if shm.is_dir() and os.access(shm, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def processes_of_session(session):
    """Pids of a session, without those that have ended and only wait to be reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


class Job:
    """A running `dynatrain train`; its JSON lines as they come. Use as a context manager: nothing is left behind."""

    def __init__(self, dynatrain, arguments, deadline_s, quiet=False):
        self.command = [str(dynatrain), "train", *arguments, "--json"]
        self.deadline = time.monotonic() + deadline_s
        self.deadline_s = deadline_s
        self.events = []
        self.ended_at = None
        self._stderr = tempfile.TemporaryFile("w+") if quiet else None
        self._lines = queue.Queue()
        self.started_at = time.monotonic()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self._stderr, text=True,
                                            env=environment, start_new_session=True)
        except OSError as error:
            raise RunError(f"cannot start {dynatrain}: {error}") from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self._reader.join(10)
        self.process.stdout.close()
        if self._stderr is not None:
            self._stderr.close()

    def stop(self):
        """Ends the job if it still runs: first the launcher is asked to, then the whole session is killed."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        for pid in processes_of_session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def next_event(self):
        """The next event, or None once the program has closed its output."""
        try:
            line = self._lines.get(timeout=max(0.0, self.deadline - time.monotonic()))
        except queue.Empty:
            raise RunError(f"no end within {self.deadline_s} s: {' '.join(self.command)}\n{self.tail()}") from None
        if line is None:
            self._lines.put(None)  # the end is told again to whoever asks again
            return None
        event = json.loads(line)
        self.events.append(event)
        return event

    def wait_until(self, wanted):
        """The first coming event that `wanted` accepts."""
        while (event := self.next_event()) is not None:
            if wanted(event):
                return event
        self.finish()
        raise RunError(f"ended before what was waited for: {' '.join(self.command)}\n{self.tail()}")

    def finish(self):
        """Reads to the end; fails if the exit code is not 0 or a process is left."""
        while self.next_event() is not None:
            pass
        code = self.process.wait(max(1.0, self.deadline - time.monotonic()))
        self.ended_at = time.monotonic()
        if code != 0:
            raise RunError(f"exit code {code}: {' '.join(self.command)}\n{self.tail()}")
        left = processes_of_session(self.process.pid)
        if left:
            raise RunError(f"processes {left} are left of {' '.join(self.command)}")

    def tail(self):
        if self._stderr is None:
            return ""
        self._stderr.seek(0)
        return "".join(self._stderr.readlines()[-LAST_LINES_SHOWN:])

    def of(self, name):
        return [event for event in self.events if event["event"] == name]


def run_job(dynatrain, arguments, deadline_s, quiet=True):
    with Job(dynatrain, arguments, deadline_s, quiet) as job:
        job.finish()
        return job


def ask_for_switch(dynatrain, port, spec, timeout_s):
    """`dynatrain switch --job`, as from another terminal."""
    command = [str(dynatrain), "switch", "--job", f"127.0.0.1:{port}", spec, "--timeout", str(timeout_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s + 30)
    if done.returncode != 0:
        raise RunError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def step_problems(job, steps, first=1):
    """What is wrong with the run of steps: each exactly once, every loss a number."""
    seen = [event["step"] for event in job.of("step")]
    problems = []
    if seen != list(range(first, steps + 1)):
        problems.append(f"steps {seen[:3]} .. {seen[-3:]}, {len(seen)} of them, are not {first} .. {steps}")
    bad = [event["step"] for event in job.of("step") if not event["loss"] < 1e4]
    if bad:
        problems.append(f"the loss of steps {bad[:5]} is no sensible number")
    return problems


def switch_problems(switch, minimum, full=True):
    """What is wrong with one switch event; `minimum`: the geometry.Transition it must not exceed."""
    problems = []
    if switch["outcome"] != "committed":
        return [f"outcome {switch['outcome']}: {switch['reason']}"]
    if full and (switch["digest_before"] != switch["digest_after"] or switch["digest_before"] == NO_DIGEST):
        problems.append(f"digest {switch['digest_before']} before, {switch['digest_after']} after")
    if switch["replica_check"] != NO_DIGEST:
        problems.append(f"replica check {switch['replica_check']} is not zero")
    if switch["moved_bytes"] != minimum.moved_bytes:
        problems.append(f"moved {switch['moved_bytes']} bytes, the minimum is {minimum.moved_bytes}")
    if switch["kept_bytes"] != minimum.kept_bytes:
        problems.append(f"kept {switch['kept_bytes']} bytes, {minimum.kept_bytes} were there")
    return problems


def gap_after(job, step):
    """Seconds between the end of `step` and the start of the next one, by the ranks that report them."""
    by_step = {event["step"]: event for event in job.of("step")}
    return by_step[step + 1]["started"] - (by_step[step]["started"] + by_step[step]["seconds"])


def preparation_cost(job, switch):
    """Seconds that steps took longer, in sum, while the switch was prepared, than the steps before it (median)."""
    seconds = {event["step"]: event["seconds"] for event in job.of("step")}
    usual = [seconds[s] for s in range(max(1, switch["requested_step"] - 4), switch["requested_step"] + 1)]
    during = [seconds[s] for s in range(switch["requested_step"] + 1, switch["step"] + 1)]
    return sum(during) - len(during) * statistics.median(usual)


def change_to(spec):
    """What the demo's change to a layout is, in words; empty if it makes no such change."""
    return next((what for what, to in CHANGES if geometry.parse_layout(to) == geometry.parse_layout(spec)), "")


def asked_from_outside(job):
    """Ids of the switches that the command line did not ask for: somebody did while the job ran."""
    scheduled = {event["id"] for event in job.of("requested")}
    return {switch["id"] for switch in job.of("switch")} - scheduled


def minimum_of(switch, parameters):
    return geometry.transition(parameters, geometry.parse_layout(switch["from"]), geometry.parse_layout(switch["to"]))


# ---- the same change by stop-and-restart -------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """One change of layout by save, exit, start, load. `pause`: end of the last old step to start of the first new one."""

    pause: float
    save: float
    exit: float
    start: float  # of processes: until all ranks run with their libraries loaded
    groups: float
    load: float
    build: float

    @property
    def other(self):
        return max(0.0, self.pause - self.save - self.exit - self.start - self.groups - self.load - self.build)

    @property
    def without_process_start(self):
        return self.pause - self.exit - self.start


def measure_restart(dynatrain, flags, old, new, steps, directory, deadline_s=120):
    """Trains `steps` steps in `old`, saves, ends; goes on in `new` from what was saved."""
    flags = [*flags, "--steps", str(steps + 3)]
    first_flags = [*flags, "--layout", old, "--stop-after", str(steps), "--save", str(directory)]
    first = run_job(dynatrain, first_flags, deadline_s)
    second = run_job(dynatrain, [*flags, "--layout", new, "--resume", str(directory)], deadline_s)
    last = first.of("step")[-1]
    saved = first.of("saved")[-1]
    resumed = second.of("resumed")
    if not resumed or resumed[0]["step"] != steps:
        raise RunError(f"the second job did not go on from step {steps}: {resumed}")
    problems = step_problems(second, steps + 3, first=steps + 1)
    if problems:
        raise RunError(f"after the restart: {problems}")
    ready = second.of("ready")
    return Restart(
        pause=second.of("step")[0]["started"] - (last["started"] + last["seconds"]),
        save=saved["seconds"],
        exit=first.ended_at - saved["t"],
        start=max(event["t"] for event in second.of("up")) - second.started_at,
        groups=max(event["groups_seconds"] for event in ready),
        load=max(event["load_seconds"] for event in ready),
        build=max(event["build_seconds"] for event in ready))


# ---- text ----------------------------------------------------------------------------------------------------------


def ms(seconds):
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def mb(count):
    return f"{count / 1e6:.2f} MB"


def table(rows):
    """Columns as wide as their widest cell; the first row is the header."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def markdown_table(rows):
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def machine():
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown CPU")
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def replace_section(path, name, text):
    """Replaces what stands between the markers `<!-- begin NAME -->` and `<!-- end NAME -->` of a file."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    whole = path.read_text()
    if begin not in whole or end not in whole:
        raise RunError(f"{path} has no section {name}")
    head, tail = whole.split(begin)[0], whole.split(end)[1]
    path.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}")


def end_cleanly_when_terminated():
    """SIGTERM unwinds as Ctrl-C does, so that jobs end and scratch files go."""
    def interrupt(number, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, interrupt)


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)
