#!/usr/bin/env python3
"""Several launchers of one job, as torchrun and srun start them; addresses said by hand."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import sysconfig
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import MICRO, Cli, events, main

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "TORCHELASTIC_USE_AGENT_STORE",
                      "GLOO_SOCKET_IFNAME")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Launchers(Cli):
    def setUp(self):
        super().setUp()
        self.lines = self.path / "lines.jsonl"
        self.train_arguments = ["train", *MICRO, "--data", self.data, "--verify", "full", f"--json={self.lines}"]

    def begin(self, command, variables):
        name, value = self.marker.split("=", 1)
        environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES} | variables | {name: value}
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    def events(self, name):
        return events([json.loads(line) for line in self.lines.read_text().splitlines()], name)

    def assert_trained(self, steps, switches):
        self.assertEqual([e["step"] for e in self.events("step")], list(range(1, steps + 1)))
        reports = self.events("switch")
        self.assertEqual([r["outcome"] for r in reports], ["committed"] * switches, reports)
        for report in reports:
            self.assertEqual(report["digest_before"], report["digest_after"], report)

    def test_torchrun_starts_the_trainer(self):
        torchrun = pathlib.Path(sysconfig.get_path("scripts")) / "torchrun"
        if not torchrun.exists():
            self.skipTest("NOT RUN: there is no torchrun beside this Python")
        job = self.begin([str(torchrun), "--standalone", "--nproc-per-node", "3", "--no-python", self.program, *self.train_arguments,
                          "--layout", "dp=2,zero=1,ranks=1-2", "--steps", "100", "--switch", "3:tp=2,dp=1", "--switch", "40:pp=3,dp=1"], {})
        code, out, err = self.finish(job)
        self.assertEqual(code, 0, f"{out}\n{err}")
        self.assert_trained(100, 2)

    def srun(self, count, *arguments):
        """What srun would start: one launcher per task, told by SLURM_ variables alone."""
        variables = {"SLURM_NTASKS": str(count), "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "127.0.0.1",
                     "MASTER_PORT": str(free_port())}
        return [self.begin([self.program, *self.train_arguments, *arguments], {**variables, "SLURM_PROCID": str(task)})
                for task in reversed(range(count))][::-1]

    def test_srun_starts_two_ranks_on_each_of_two_nodes(self):
        jobs = self.srun(2, "--nproc", "2", "--layout", "tp=2,dp=2,zero=1", "--steps", "90", "--switch", "3:pp=2,dp=1,ranks=2-3")
        for job in jobs:
            code, out, err = self.finish(job)
            self.assertEqual(code, 0, f"{out}\n{err}")
        self.assert_trained(90, 1)

    def test_a_lost_rank_of_another_launcher_ends_all_with_its_name(self):
        jobs = self.srun(2, "--layout", "dp=2", "--steps", "100000")
        deadline = time.monotonic() + 60
        while not (self.lines.exists() and '"step"' in self.lines.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        (child,) = pathlib.Path(f"/proc/{jobs[1].pid}/task/{jobs[1].pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        ends = [self.finish(job) for job in jobs]
        self.assertEqual([code for code, _, _ in ends], [1, 1], ends)
        for _, _, err in ends:
            self.assertIn("rank 1 ", err)
            self.assertIn("signal 9", err)

    def test_a_signal_to_one_launcher_saves_all(self):
        store = self.path / "store"
        jobs = self.srun(2, "--layout", "dp=2,zero=1", "--steps", "100000", "--save", str(store))
        deadline = time.monotonic() + 60
        while not (self.lines.exists() and '"step"' in self.lines.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        jobs[0].send_signal(signal.SIGTERM)
        ends = [self.finish(job) for job in jobs]
        self.assertEqual(ends[0][0], 128 + signal.SIGTERM, ends)
        self.assertEqual(ends[1][0], 0, ends)
        (saved,) = self.events("saved")
        self.assertIn(saved["path"], ends[0][2])

    def test_addresses_by_hand_and_what_is_wrong_with_them(self):
        for where in (["--interface", "lo"], ["--host", "127.0.0.1"]):
            code, out, err = self.finish(self.begin([self.program, *self.train_arguments, "--layout", "dp=2", "--steps", "2", *where], {}))
            self.assertEqual(code, 0, f"{out}\n{err}")
        for where, text in ((["--interface", "lo", "--host", "127.0.0.1"], "one of them"), (["--interface", "nowhere0"], "nowhere0"),
                            (["--host", "192.0.2.7"], "192.0.2.7")):
            code, out, err = self.finish(self.begin([self.program, *self.train_arguments, "--layout", "dp=2", "--steps", "2", *where], {}))
            self.assertNotEqual(code, 0, where)
            self.assertIn(text, err)
        code, out, err = self.finish(self.begin([self.program, *self.train_arguments, "--layout", "dp=2", "--steps", "2"], {"RANK": "0"}))
        self.assertNotEqual(code, 0)
        self.assertIn("WORLD_SIZE", err)


if __name__ == "__main__":
    main()
