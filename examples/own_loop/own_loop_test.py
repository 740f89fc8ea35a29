#!/usr/bin/env python3
"""Installs a built DynaTrain, builds examples/own_loop against the installed copy alone, and switches it live.

    own_loop_test.py BUILD_DIRECTORY
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

EXAMPLE = pathlib.Path(__file__).resolve().parent
BUILD_DEADLINE_S = 400
RUN_DEADLINE_S = 120
STEPS = 36
build_directory = ""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_DEADLINE_S)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{result.stdout[-3000:]}{result.stderr[-3000:]}")


class Job:
    """The outcome of one process per rank: exit codes, losses by step, reports of switches, what they said."""

    def __init__(self, program, ranks, *arguments):
        environment = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen([program, *map(str, arguments)], env={**environment, "RANK": str(rank)},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                     for rank in range(ranks)]
        try:
            self.outputs = [p.communicate(timeout=RUN_DEADLINE_S)[0] for p in processes]
        finally:
            for p in processes:
                p.kill()
                p.wait()
        self.codes = [p.returncode for p in processes]
        lines = [line for output in self.outputs for line in output.splitlines()]
        self.losses = {int(m[1]): float(m[2]) for line in lines if (m := re.match(r"step (\d+) loss (\S+)", line))}
        reports = [json.loads(line) for line in lines if line.startswith("{")]
        self.reports = sorted(reports, key=lambda report: report["id"])


class OwnLoop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="dynatrain-own-loop-")
        cls.addClassCleanup(cls.directory.cleanup)
        path = pathlib.Path(cls.directory.name)
        run("cmake", "--install", build_directory, "--prefix", path / "installed")
        run("cmake", "-S", EXAMPLE, "-B", path / "build", f"-DCMAKE_PREFIX_PATH={path / 'installed'}",
            "-DCMAKE_BUILD_TYPE=Debug")
        run("cmake", "--build", path / "build")
        cls.program = path / "build" / "own_loop"
        cls.text = path / "text.txt"
        cls.text.write_text("a training loop of one's own goes from layout to layout and loses nothing. " * 40)

    def test_tp2_to_dp2_to_one_rank_trains_as_one_rank_does(self):
        alone = Job(self.program, 1, self.text, STEPS, "dp=1")
        self.assertEqual(alone.codes, [0], alone.outputs)
        elastic = Job(self.program, 2, self.text, STEPS, "tp=2", "9:dp=2", "20:dp=1")
        self.assertEqual(elastic.codes, [0, 0], elastic.outputs)
        self.assertEqual([(r["from"], r["to"], r["outcome"]) for r in elastic.reports],
                         [("tp=2,dp=1", "dp=2", "committed"), ("dp=2", "dp=1", "committed")])
        for report in elastic.reports:
            self.assertEqual(report["digest_before"], report["digest_after"])
            self.assertNotEqual(report["digest_before"], "0" * 16)
            self.assertEqual(report["replica_check"], "0" * 16)
            self.assertGreaterEqual(report["step"], report["requested_step"])
            self.assertLess(report["step"], STEPS)
        self.assertGreater(elastic.reports[0]["moved_bytes"], 0)
        self.assertEqual(sorted(alone.losses), list(range(1, STEPS + 1)))
        self.assertEqual(sorted(elastic.losses), list(range(1, STEPS + 1)))
        for step, loss in alone.losses.items():
            self.assertAlmostEqual(elastic.losses[step] / loss, 1, delta=2e-5, msg=f"step {step}")
        self.assertLess(alone.losses[STEPS], 0.8 * alone.losses[1])

    def test_a_layout_the_loop_cannot_train_is_refused_by_name(self):
        job = Job(self.program, 2, self.text, STEPS, "pp=2")
        self.assertEqual(job.codes, [1, 1])
        self.assertIn("pp=2", "".join(job.outputs))

    def test_the_integration_takes_less_than_forty_lines(self):
        inside, lines = False, 0
        for line in (EXAMPLE / "own_loop.cc").read_text().splitlines():
            if line.strip().startswith("// ---- "):
                inside = "DynaTrain" in line
            elif inside and line.strip() and not line.strip().startswith("//"):
                lines += 1
        self.assertGreater(lines, 20)
        self.assertLess(lines, 40)


if __name__ == "__main__":
    build_directory = sys.argv.pop(1)
    unittest.main()
