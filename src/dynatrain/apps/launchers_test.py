#!/usr/bin/env python3
"""Several launchers of one job, as torchrun and srun start them; addresses said by hand.

    launchers_test.py DYNATRAIN [Launchers | Torchrun]

Where there is no torchrun, its test says so and is skipped.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import sysconfig
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import MICRO, Cli, events, json_lines, main

TORCHRUN = pathlib.Path(sysconfig.get_path("scripts")) / "torchrun"
ENDLESS = ["--steps", "100000"]
CLUSTER = pathlib.Path(__file__).parents[3] / "examples" / "cluster"
# Stands in for Slurm's: two tasks on one machine.
FAKE_SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
export SLURM_NTASKS=2 SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=127.0.0.1
SLURM_PROCID=1 "$@" & other=$!
SLURM_PROCID=0 "$@"; code=$?
wait $other || code=$?
exit $code
"""
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "TORCHELASTIC_USE_AGENT_STORE",
                      "GLOO_SOCKET_IFNAME")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class SeveralLaunchers(Cli):
    def setUp(self):
        super().setUp()
        self.lines = self.path / "lines.jsonl"
        self.train_arguments = ["train", *MICRO, "--data", self.data, "--verify", "full", f"--json={self.lines}"]

    def begin(self, command, variables):
        name, value = self.marker.split("=", 1)
        environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES} | variables | {name: value}
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    def events(self, name):
        return events(json_lines(self.lines), name)

    def assert_trained(self, steps, switches):
        self.assertEqual(sorted(e["step"] for e in self.events("step")), list(range(1, steps + 1)))  # another launcher's come late
        reports = self.events("switch")
        self.assertEqual([r["outcome"] for r in reports], ["committed"] * switches, reports)
        for report in reports:
            self.assertEqual(report["digest_before"], report["digest_after"], report)

    def srun(self, count, *arguments):
        """What srun would start: one launcher per task, told by SLURM_ variables alone."""
        variables = {"SLURM_NTASKS": str(count), "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "127.0.0.1",
                     "MASTER_PORT": str(free_port())}
        return [self.begin([self.program, *self.train_arguments, *arguments], {**variables, "SLURM_PROCID": str(task)})
                for task in reversed(range(count))][::-1]

    def await_steps(self):
        self.wait_until(lambda: self.events("step"), "the first step")


@unittest.skipUnless(TORCHRUN.exists(), f"NOT RUN: there is no {TORCHRUN}")
class Torchrun(SeveralLaunchers):
    def test_torchrun_starts_the_trainer(self):
        job = self.begin([str(TORCHRUN), "--standalone", "--nproc-per-node", "3", "--no-python", self.program,
                          *self.train_arguments, "--layout", "dp=2,zero=1,ranks=1-2", "--steps", "100",
                          "--switch", "3:tp=2,dp=1", "--switch", "40:pp=3,dp=1"], {})
        code, out, err = self.finish(job)
        self.assertEqual(code, 0, f"{out}\n{err}")
        self.assert_trained(100, 2)
        self.assertEqual(sorted(e["rank"] for e in self.events("up")), [0, 1, 2])


class Launchers(SeveralLaunchers):
    def test_srun_starts_two_ranks_on_each_of_two_nodes(self):
        jobs = self.srun(2, "--nproc", "2", "--layout", "tp=2,dp=2,zero=1", "--steps", "90", "--switch", "3:pp=2,dp=1,ranks=2-3")
        for job in jobs:
            code, out, err = self.finish(job)
            self.assertEqual(code, 0, f"{out}\n{err}")
        self.assert_trained(90, 1)

    def test_the_slurm_script_trains_and_goes_on_from_its_checkpoints(self):
        (self.path / "srun").write_text(FAKE_SRUN)
        (self.path / "srun").chmod(0o755)
        (self.path / "dynatrain").symlink_to(pathlib.Path(self.program).resolve())
        store = self.path / "store"
        variables = {"PATH": f"{self.path}:{os.environ['PATH']}", "DATA": self.data, "DIR": str(store), "MODEL": "micro-llama",
                     "RANKS_PER_NODE": "2", "LAYOUT": "tp=2,zero=1", "CONTROL_PORT": "0"}
        for steps in ("4", "6"):
            job = self.begin(["bash", str(CLUSTER / "slurm.sh")],
                             {**variables, "STEPS": steps, "MASTER_PORT": str(free_port())})
            code, out, err = self.finish(job)
            self.assertEqual(code, 0, f"{out}\n{err}")
            self.assertTrue((store / f"step-0000000{steps}" / "checkpoint.json").exists(), err)
        self.assertIn("resumed step 4", err)

    def test_a_lost_rank_of_another_launcher_ends_all_with_its_name(self):
        jobs = self.srun(2, "--layout", "dp=2", *ENDLESS)
        self.await_steps()
        (child,) = pathlib.Path(f"/proc/{jobs[1].pid}/task/{jobs[1].pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        ends = [self.finish(job) for job in jobs]
        self.assertEqual([code for code, _, _ in ends], [1, 1], ends)
        for _, _, err in ends:
            self.assertIn("rank 1 ", err)
            self.assertIn("signal 9", err)

    def test_a_signal_to_one_launcher_saves_all(self):
        store = self.path / "store"
        expected = {0: [128 + signal.SIGTERM, 0], 1: [1, 128 + signal.SIGTERM]}
        for told, codes in expected.items():
            with self.subTest(launcher=told):
                jobs = self.srun(2, "--layout", "dp=2,zero=1", *ENDLESS, "--save", str(store))
                self.await_steps()
                jobs[told].send_signal(signal.SIGTERM)
                ends = [self.finish(job) for job in jobs]
                self.assertEqual([code for code, _, _ in ends], codes, ends)
                (saved,) = self.events("saved")
                self.assertIn(saved["path"], ends[0][2])
                self.assertIn("signal 15" + (" to launcher 1" if told else " after"), ends[0][2])
                self.lines.unlink()

    def test_a_signal_to_a_further_launcher_ends_a_job_that_does_not_save(self):
        jobs = self.srun(2, "--layout", "dp=2", *ENDLESS)
        self.await_steps()
        jobs[1].send_signal(signal.SIGINT)
        ends = [self.finish(job) for job in jobs]
        self.assertEqual([code for code, _, _ in ends], [1, 128 + signal.SIGINT], ends)
        self.assertIn("launcher 1: stopped by signal 2", ends[0][2])

    def test_input_that_the_first_refuses_ends_all_at_once_with_its_reason(self):
        for wrong, why in ((["--layout", "pp=2,split=2+2"], "split"),
                           (["--layout", "dp=2", f"--json={self.path / 'no' / 'such'}"], "cannot write there")):
            with self.subTest(wrong=wrong):
                jobs = self.srun(2, *wrong, *ENDLESS, "--join-timeout", "80000")
                for code, _, err in [self.finish(job) for job in jobs]:
                    self.assertEqual(code, 1, err)
                    self.assertIn(why, err)
                self.assertIn("the first launcher ended the job: ", err)

    def test_a_launcher_that_does_not_come_is_named(self):
        (first, second) = self.srun(2, "--layout", "dp=2", *ENDLESS, "--join-timeout", "1")
        second.kill()
        second.communicate()
        code, out, err = self.finish(first)
        self.assertEqual(code, 1, err)
        for text in ("launcher 1 of 2 did not come", "127.0.0.1:", "within 1 s", "RANK of 0 to 1"):
            self.assertIn(text, err)

    def test_a_lost_launcher_whose_ranks_idle_is_named_before_it_ends_the_job(self):
        first, second = self.srun(2, "--nproc", "2", "--layout", "dp=1", *ENDLESS, "--step-timeout", "5")
        self.await_steps()
        second.kill()
        second.communicate()
        code, out, err = self.finish(first)
        self.assertEqual(code, 1, err)
        lost = rf"launcher 1 on {socket.gethostname()} \(ranks 2-3\) gave no sign of life for \d+ s; "
        self.assertRegex(err, lost + "the job ends after 10 s of that\n")
        self.assertRegex(err.splitlines()[-1], lost + "its ranks are lost$")
        (silent,) = self.events("silent")
        self.assertEqual((silent["launcher"], silent["host"], silent["ranks"]), (1, socket.gethostname(), [2, 3]))

    def test_a_lost_launcher_whose_ranks_train_explains_what_the_others_see(self):
        first, second = self.srun(2, "--nproc", "2", "--layout", "tp=2,dp=2", *ENDLESS)
        self.await_steps()
        second.kill()
        second.communicate()
        code, out, err = self.finish(first)
        self.assertEqual(code, 1, err)
        self.assertRegex(err.splitlines()[-1], rf"launcher 1 on {socket.gethostname()} \(ranks 2-3\) gave no sign of life for "
                                               r"\d+ s; its ranks are lost; rank [01]: ")

    def test_launchers_end_with_the_first(self):
        first, second = self.srun(2, "--layout", "dp=1", *ENDLESS)
        self.await_steps()
        first.kill()
        first.communicate()
        code, out, err = self.finish(second)
        self.assertEqual(code, 1, err)
        self.assertIn("store", err)

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
        self.refuse([*self.train_arguments, "--layout", "dp=2", "--steps", "2", "--join-timeout", "0"], "--join-timeout 0",
                    "seconds")


if __name__ == "__main__":
    main()
