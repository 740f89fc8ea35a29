#!/usr/bin/env python3
"""What becomes of awkward requests to a running job, asked for through the command line."""

import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import MICRO, Cli, events, json_lines, main

FIRST = "dp=2,zero=1"


class Requests(Cli):
    def begin(self, steps):
        """A job under control; its address and where its JSON lines go."""
        path = self.path / "lines.jsonl"
        self.job = self.start("train", *MICRO, "--data", self.data, "--layout", FIRST, "--nproc", "4", "--steps", str(steps),
                              "--verify", "full", "--control", "127.0.0.1:0", f"--json={path}")
        self.address = next(line.split()[4] for line in self.job.stderr if line.startswith("control:"))
        # Drained, so that the job never waits for its reader.
        self.told = self.path / "told"
        with self.told.open("w") as told:
            self.drain = subprocess.Popen(["cat"], stdin=self.job.stderr, stdout=told)
        return path

    def end(self):
        if self.job.poll() is None:
            self.job.send_signal(signal.SIGINT)
        self.job.wait(timeout=60)
        self.drain.wait(timeout=60)
        self.job.stdout.close()
        self.job.stderr.close()

    def ask(self, spec, *flags):
        return self.start("switch", "--job", self.address, spec, "--json", *flags)

    def status(self):
        code, out, err = self.run_cli("status", "--job", self.address, "--json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def assert_proven(self, report):
        self.assertEqual(report["outcome"], "committed", report)
        self.assertEqual(report["digest_before"], report["digest_after"], report)

    def test_two_at_once_are_carried_out_one_after_the_other(self):
        self.begin(1000000)
        try:
            answers = [self.finish(process) for process in [self.ask("tp=2,dp=2,zero=1"), self.ask("pp=3,dp=1")]]
            reports = sorted((json.loads(out) for code, out, _ in answers), key=lambda r: r["id"])
            self.assertEqual([code for code, _, _ in answers], [0, 0], answers)
            for report in reports:
                self.assert_proven(report)
            self.assertEqual([r["id"] for r in reports], [1, 2])
            self.assertEqual(reports[0]["from"], FIRST)
            self.assertEqual(reports[1]["from"], reports[0]["to"])
            self.assertGreater(reports[1]["step"], reports[0]["step"])
            self.assertEqual(self.status()["layout"], reports[1]["to"])
        finally:
            self.end()

    def test_more_while_one_prepares(self):
        self.begin(1000000)
        try:
            wanted = ["tp=2,dp=2,zero=1", "pp=2,dp=2", "dp=4,zero=1"]
            for spec in wanted:
                code, out, err = self.finish(self.ask(spec, "--no-wait"))
                self.assertEqual(code, 0, err)
            # The same as the last: by the time its turn comes, the job is there already.
            code, out, err = self.finish(self.ask(wanted[-1]))
            self.assertEqual(code, 1, out)
            self.assertIn("already in", err)
            reports = self.status()["switches"]
            self.assertEqual([r["to"] for r in reports[:3]], wanted)
            for report in reports[:3]:
                self.assert_proven(report)
            self.assertTrue(all(r["outcome"] == "rolled_back" for r in reports[3:]), reports)
            self.assertEqual(self.status()["layout"], wanted[-1])
        finally:
            self.end()

    def test_status_tells_what_is_pending_and_which_rank_it_waits_for(self):
        self.begin(1000000)
        late = self.rank_pid(self.job, 3)
        os.kill(late, signal.SIGSTOP)
        try:
            self.assertEqual(self.status()["pending"], [])
            for spec in ("tp=2,dp=2,zero=1", "pp=2,dp=2"):
                code, _, err = self.finish(self.ask(spec, "--no-wait"))
                self.assertEqual(code, 0, err)
            first = self.wait_until(lambda: (p := self.status()["pending"]) and p[0]["waiting_for"] == [3] and p, "three votes")
            self.assertEqual([(p["id"], p["to"], p["stage"], p["waiting_for"]) for p in first],
                             [(1, "tp=2,dp=2,zero=1", "preparing", [3]), (2, "pp=2,dp=2", "queued", [])])
            code, out, err = self.run_cli("status", "--job", self.address)
            self.assertEqual(code, 0, err)
            self.assertIn("switch 1 to tp=2,dp=2,zero=1: preparing, waits for rank 3\nswitch 2 to pp=2,dp=2: queued\n", out)
            self.refuse(["switch", "--job", self.address, "dp=4", "--timeout", "1"], "switch 3 ", "within 1 s", "dp=4: queued")
            os.kill(late, signal.SIGCONT)
            self.wait_until(lambda: not self.status()["pending"], "all reports")
            self.assertEqual([r["outcome"] for r in self.status()["switches"]], ["committed"] * 3)
        finally:
            os.kill(late, signal.SIGCONT)
            self.end()

    def test_a_switch_that_waits_for_a_stopped_idle_rank_says_so_unasked(self):
        path = self.begin(1000000)
        late = self.rank_pid(self.job, 3)
        os.kill(late, signal.SIGSTOP)
        try:
            code, _, err = self.finish(self.ask("tp=2,dp=2,zero=1", "--no-wait"))
            self.assertEqual(code, 0, err)
            (waiting, *_) = self.wait_until(lambda: [e for e in events(json_lines(path), "waiting") if e["waiting_for"] == [3]],
                                            "word of rank 3")
            self.assertEqual({k: waiting[k] for k in ("id", "to", "stage", "waiting_for", "stopped")},
                             {"id": 1, "to": "tp=2,dp=2,zero=1", "stage": "preparing", "waiting_for": [3], "stopped": [3]})
            for text in ("switch 1 to tp=2,dp=2,zero=1: preparing, waits for rank 3; no answer for ", "rank 3 was stopped by signal 19"):
                self.assertIn(text, self.told.read_text())
            # Training goes on meanwhile, in the old layout.
            step = self.status()["step"]
            self.wait_until(lambda: self.status()["step"] > step, "one more step")
            self.assertEqual(self.status()["layout"], FIRST)
            os.kill(late, signal.SIGCONT)
            self.wait_until(lambda: not self.status()["pending"], "the report")
            self.assert_proven(self.status()["switches"][0])
        finally:
            os.kill(late, signal.SIGCONT)
            self.end()

    def test_the_layout_the_job_is_in(self):
        self.begin(1000000)
        try:
            self.refuse(["switch", "--job", self.address, FIRST], "already in")
            self.refuse(["switch", "--job", self.address, "zero=1,dp=2,tp=1"], "already in")  # the same, written otherwise
            self.assertEqual(self.status()["layout"], FIRST)
        finally:
            self.end()

    def test_past_the_last_step(self):
        path = self.begin(40)
        processes = [self.ask(spec) for spec in ("tp=2,dp=2,zero=1", "pp=3,dp=1", "dp=4", "tp=2,dp=1", "dp=4,zero=1")]
        answers = [self.finish(process) for process in processes]
        self.assertEqual(self.job.wait(timeout=60), 0)
        self.end()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual([e["step"] for e in events(lines, "step")], list(range(1, 41)))
        reports = {r["id"]: r for r in events(lines, "switch")}
        for code, out, err in answers:
            if not out:  # the job had ended before it could answer
                self.assertNotEqual(code, 0)
                continue
            report = json.loads(out)
            self.assertEqual(report["outcome"], reports[report["id"]]["outcome"])
            self.assertEqual(code == 0, report["outcome"] == "committed", err)
        for report in reports.values():
            self.assertIn(report["outcome"], ("committed", "rolled_back"))
            if report["outcome"] == "rolled_back":
                self.assertNotEqual(report["reason"], "")


if __name__ == "__main__":
    main()
