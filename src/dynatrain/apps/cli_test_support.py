"""Runs the dynatrain program for tests: real processes, free ports, deadlines, nothing left behind."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

DEADLINE_S = 120
SKIPPED = 77
NO_DIGEST = "0" * 16  # told where none was asked for
MICRO = ["--model", "micro-llama", "--global-batch", "4", "--seq", "32"]


def text_file(directory, size=50_000):
    """A file of words, the same for the same size."""
    words = "the quick brown fox jumps over a lazy dog while training goes on".split()
    out, state = [], 1
    while sum(map(len, out)) < size and len(out) < size:
        state = (state * 1103515245 + 12345) % 2**31
        out.append(words[(state >> 16) % len(words)] + " ")
        if len(out) % 2000 == 0 and sum(map(len, out)) >= size:
            break
    path = pathlib.Path(directory) / "text.txt"
    path.write_text("".join(out)[:size])
    return str(path)


def descendants_alive(marker):
    """Pids of processes whose environment holds `marker`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


class Cli(unittest.TestCase):
    """Each test has a directory of its own, and fails if a process of its survives it."""

    program = ""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="dynatrain-test-")
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name)
        self.data = text_file(self.path)
        self.marker = f"DYNATRAIN_TEST_MARKER={self.id()}-{os.getpid()}"
        self.addCleanup(self.check_no_orphans)

    def check_no_orphans(self):
        deadline = time.monotonic() + 10
        while (left := descendants_alive(self.marker)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, [], "orphan processes")

    def start(self, *arguments, **options):
        name, value = self.marker.split("=", 1)
        return subprocess.Popen([self.program, *arguments], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env={**os.environ, name: value}, **options)

    def finish(self, process):
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"no end within {DEADLINE_S} s\n{out}\n{err}")
        return process.returncode, out, err

    def run_cli(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def wait_until(self, condition, what):
        deadline = time.monotonic() + DEADLINE_S
        while not (result := condition()):
            if time.monotonic() > deadline:
                self.fail(f"waited {DEADLINE_S} s for {what}")
            time.sleep(0.01)
        return result

    def rank_pid(self, job, rank):
        """The pid of a rank of a job that is being started. It runs its program: before, its launcher waits for it."""
        children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children")

        def started():
            pids = children.read_text().split()
            running = rank < len(pids) and b"\0rank\0" in pathlib.Path(f"/proc/{pids[rank]}/cmdline").read_bytes()
            return int(pids[rank]) if running else None
        return self.wait_until(started, f"rank {rank}")

    def train(self, *arguments):
        """A run that must succeed; its JSON lines."""
        lines = self.path / f"lines-{time.monotonic_ns()}.jsonl"
        code, out, err = self.run_cli("train", *MICRO, "--data", self.data, f"--json={lines}", *arguments)
        self.assertEqual(code, 0, f"{out}\n{err}")
        return [json.loads(line) for line in lines.read_text().splitlines()]

    def refuse(self, arguments, *expected, **options):
        """The command ends with exit code 1, and prints nothing but one message that holds all of `expected`."""
        code, out, err = self.run_cli(*arguments, **options)
        self.assertEqual(code, 1, f"{arguments}\n{out}\n{err}")
        self.assertEqual(out, "", f"{arguments}")
        self.assertEqual(len(err.splitlines()), 1, f"{arguments}\n{err}")
        self.assertTrue(err.startswith(f"dynatrain {arguments[0]}: "), f"{arguments}\n{err}")
        for text in expected:
            self.assertIn(text, err, f"{arguments}")
        return err


def events(lines, name):
    return [line for line in lines if line["event"] == name]


def json_lines(path):
    """The whole lines written so far."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def main():
    """Ends with SKIPPED if every test that was asked for was skipped: ctest then tells that, not success."""
    Cli.program = sys.argv.pop(1)
    result = unittest.main(verbosity=2, exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    if result.testsRun == len(result.skipped):
        sys.exit(SKIPPED)
