#!/usr/bin/env python3
"""Jobs of real processes: switch, resume, be asked from outside, lose a rank."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import MICRO, NO_DIGEST, Cli, events, json_lines, main


def losses(lines):
    return {e["step"]: e["loss"] for e in events(lines, "step")}


class Jobs(Cli):
    def assert_proven(self, report):
        self.assertEqual(report["outcome"], "committed", report)
        self.assertEqual(report["digest_before"], report["digest_after"], report)
        self.assertRegex(report["digest_before"], "^[0-9a-f]{16}$", report)
        self.assertNotEqual(report["digest_before"], NO_DIGEST, report)
        self.assertEqual(report["replica_check"], NO_DIGEST, report)

    def assert_same_losses(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        for step in one:
            self.assertAlmostEqual(one[step], other[step], delta=2e-5 * one[step], msg=f"step {step}")

    def test_switches_change_nothing_but_the_layout(self):
        static = self.train("--layout", "dp=1", "--steps", "240")
        elastic = self.train("--layout", "dp=2,zero=1", "--steps", "240", "--verify", "full", "--nproc", "4",
                             "--switch", "3:dp=1", "--switch", "60:tp=2,pp=2", "--switch", "110:pp=3,split=1+1+1,ranks=3+1+2",
                             "--switch", "170:dp=4,zero=1")
        reports = events(elastic, "switch")
        self.assertEqual([r["to"] for r in reports], ["dp=1", "tp=2,pp=2,dp=1", "pp=3,dp=1,split=1+1+1,ranks=3+1-2",
                                                      "dp=4,zero=1"])
        for report in reports:
            self.assert_proven(report)
        self.assert_same_losses(losses(static), losses(elastic))

    def test_a_switch_that_the_end_of_the_job_overtakes_is_told(self):
        lines = self.path / "lines.jsonl"
        job = self.start("train", *MICRO, "--data", self.data, "--layout", "dp=1", "--steps", "4", "--nproc", "4",
                         "--switch", "3:tp=2,dp=2,zero=1", f"--json={lines}")
        stopped = self.rank_pid(job, 3)  # long before it has loaded its libraries: it cannot prepare anything
        os.kill(stopped, signal.SIGSTOP)
        try:
            self.wait_until(lambda: any(e["event"] == "step" and e["step"] == 4 for e in json_lines(lines)), "step 4")
            self.assertNotIn(3, [e["rank"] for e in events(json_lines(lines), "ready")], "rank 3 was stopped too late")
        finally:
            os.kill(stopped, signal.SIGCONT)
        code, _, err = self.finish(job)
        self.assertEqual(code, 0, err)
        (report,) = events(json_lines(lines), "switch")
        self.assertEqual((report["outcome"], report["from"], report["to"]), ("rolled_back", "dp=1", "tp=2,dp=2,zero=1"))
        self.assertIn("job", report["reason"])

    def test_a_switch_made_just_before_a_signal_is_told_as_committed(self):
        # Rank 0 stops for good where it dumps its state: nobody reads the pipe that it opens. Costs are told five steps after
        # a switch. First: no step in the new layout; then: two, and another switch that is not made any more.
        for stops_at, switches, step in (("switch-1-after", ["3:tp=2"], 3), ("switch-2-before", ["3:tp=2", "5:dp=1"], 5)):
            with self.subTest(stops_at=stops_at):
                dump = self.path / stops_at
                (dump / stops_at).mkdir(parents=True)
                os.mkfifo(dump / stops_at / "rank-0.safetensors.tmp")
                job, lines = self.running("--layout", "dp=2", "--exact-switches", "--dump-state", str(dump),
                                          *(x for switch in switches for x in ("--switch", switch)))
                self.wait_until((dump / stops_at / "rank-1.safetensors").exists, stops_at)
                self.wait_until(lambda: events(json_lines(lines), "step")[-1]["step"] == step, f"step {step} to be told")
                job.send_signal(signal.SIGINT)
                self.assert_ends_with_one_message(job, f"stopped by signal 2 after step {step};")
                reports = [(r["outcome"], r["step"], r["from"], r["to"], r["reason"].split(":")[0]) for r in events(json_lines(lines), "switch")]
                self.assertEqual(reports[0], ("committed", 3, "dp=2", "tp=2,dp=1", "the job ended before its costs were told"))
                self.assertEqual(reports[1:], [("rolled_back", 5, "tp=2,dp=1", "dp=1", "the job was ended first")][:len(switches) - 1])

    def test_an_exact_switch_is_never_overtaken(self):
        lines = self.train("--layout", "dp=1", "--steps", "4", "--nproc", "4", "--exact-switches", "--verify", "full",
                           "--switch", "3:tp=2,dp=2,zero=1")
        (report,) = events(lines, "switch")
        self.assert_proven(report)
        self.assertEqual(report["step"], 3)
        self.assertEqual([e["layout"] for e in events(lines, "step")], ["dp=1"] * 3 + ["tp=2,dp=2,zero=1"])

    def test_resume_goes_on_in_another_layout(self):
        whole = self.train("--layout", "dp=1", "--steps", "12")
        store = str(self.path / "checkpoints")
        # The schedule depends on --steps: both halves are told the whole length through --resume's own state.
        first = self.train("--layout", "tp=2,dp=2,zero=1", "--steps", "12", "--stop-after", "6", "--save", store)
        second = self.train("--layout", "pp=3", "--steps", "12", "--resume", store)
        self.assertEqual(list(losses(second)), list(range(7, 13)))
        self.assert_same_losses(losses(whole), {**losses(first), **losses(second)})

    def test_a_switch_from_outside(self):
        lines = self.path / "lines.jsonl"
        job = self.start("train", *MICRO, "--data", self.data, "--layout", "dp=2,zero=1", "--nproc", "4", "--steps", "100000",
                         "--verify", "full", "--control", "127.0.0.1:0", f"--json={lines}")
        address = next(line.split()[4] for line in job.stderr if line.startswith("control:"))
        # Drained, so that the job never waits for its reader.
        drain = subprocess.Popen(["cat"], stdin=job.stderr, stdout=subprocess.DEVNULL)
        try:
            code, out, err = self.run_cli("switch", "--job", address, "tp=2,dp=2,zero=1", "--json")
            self.assertEqual(code, 0, err)
            self.assert_proven(json.loads(out))
            self.refuse(["switch", "--job", address, "tp=2,dp=2,zero=1"], "already in")
            self.refuse(["switch", "--job", address, "tp=4"], "tp=4")
            self.refuse(["switch", "--job", address, "dp=5"], "5")
            code, out, err = self.run_cli("status", "--job", address, "--json")
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out)["layout"], "tp=2,dp=2,zero=1")
        finally:
            job.send_signal(signal.SIGINT)
            self.assertNotEqual(job.wait(timeout=30), 0)
            drain.wait(timeout=30)
            job.stdout.close()
            job.stderr.close()

    def test_a_killed_rank_ends_the_job_with_one_message(self):
        for victim in (0, 2):
            with self.subTest(rank=victim):
                lines = self.path / f"lines-{victim}.jsonl"
                job = self.start("train", *MICRO, "--data", self.data, "--layout", "tp=2,dp=2,ranks=0-2+4", "--nproc", "5",
                                 "--steps", "100000", f"--json={lines}")
                deadline = time.monotonic() + 60
                while not (lines.exists() and '"step"' in lines.read_text()) and time.monotonic() < deadline:
                    time.sleep(0.05)
                children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
                os.kill(int(children[victim]), signal.SIGKILL)
                code, _, err = self.finish(job)
                self.assertNotEqual(code, 0)
                self.assertIn(f"rank {victim} ", err)
                self.assertIn("signal 9", err)
                self.assertEqual(err.count("dynatrain train:"), 1, err)

    def running(self, *arguments):
        """A job that trains, and the file of its JSON lines."""
        lines = self.path / f"lines-{time.monotonic_ns()}.jsonl"
        job = self.start("train", *MICRO, "--data", self.data, "--steps", "1000000", f"--json={lines}", *arguments)
        self.wait_until(lambda: job.poll() is not None or events(json_lines(lines), "step"), "the first step")
        return job, lines

    def assert_ends_with_one_message(self, job, *expected, unexpected=()):
        code, _, err = self.finish(job)
        self.assertNotEqual(code, 0)
        (message,) = [line for line in err.splitlines() if line.startswith("dynatrain")]
        for text in expected:
            self.assertIn(text, message)
        for text in unexpected:
            self.assertNotIn(text, message)

    def test_a_stopped_rank_is_named(self):
        job, _ = self.running("--layout", "tp=2,dp=2", "--nproc", "4", "--step-timeout", "3")
        stopped = self.rank_pid(job, 2)
        os.kill(stopped, signal.SIGSTOP)
        self.assert_ends_with_one_message(job, "in group", "of ranks", "imed out waiting 3000ms", "--step-timeout 3", "; rank 2 was stopped by signal 19",
                                          unexpected=["no word"])

    def test_a_stopped_idle_rank_does_not_keep_the_job_from_ending(self):
        checkpoints = str(self.path / "checkpoints")
        told, _ = self.running("--layout", "dp=1", "--nproc", "2", "--save", checkpoints)
        ending = self.start("train", *MICRO, "--data", self.data, "--steps", "4", "--layout", "dp=1", "--nproc", "2")
        for job in (told, ending):
            os.kill(self.rank_pid(job, 1), signal.SIGSTOP)
        told.send_signal(signal.SIGTERM)
        for job, expected in ((told, 128 + signal.SIGTERM), (ending, 0)):
            code, _, err = self.finish(job)
            self.assertEqual(code, expected, err)
            self.assertIn("rank 1 was stopped by signal 19", err)
            self.assertIn("did not end within 5 s of the end of the job and was killed", err)
            if job is told:
                self.assertRegex(err, r"stopped by signal 15 after step (\d+); saved step \1 to ")

    def test_data_cut_short_while_training(self):
        job, _ = self.running("--layout", "dp=2", "--nproc", "2")
        os.truncate(self.data, 1000)
        self.assert_ends_with_one_message(job, self.data, "cut short", "it had 50000 bytes")

    def test_two_jobs_do_not_write_to_one_directory(self):
        for flag in ("--save", "--dump-state"):
            with self.subTest(flag=flag):
                shared = str(self.path / f"shared{flag}")
                job, _ = self.running("--layout", "dp=1", flag, shared)
                self.refuse(["train", *MICRO, "--data", self.data, "--layout", "dp=1", "--steps", "1", flag, shared],
                            f"{flag} {shared}", "another job")
                job.send_signal(signal.SIGINT)
                self.finish(job)
                self.train("--layout", "dp=1", "--steps", "1", flag, shared)

    def test_silent_clients_hold_up_nothing(self):
        job = self.start("train", *MICRO, "--data", self.data, "--layout", "dp=1", "--nproc", "2", "--steps", "1000000",
                         "--control", "127.0.0.1:0")
        address = next(line.split()[4] for line in job.stderr if line.startswith("control:"))
        host, port = address.split(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(24)]
        clients[0].sendall(b"GET /sta")
        # More than httplib serves by itself: the others are answered before these have timed out.
        code, out, err = self.run_cli("status", "--job", address)
        self.assertEqual(code, 0, err)
        for client in clients:
            client.settimeout(60)
        self.assertEqual(clients[1].recv(1), b"", "a silent client is disconnected")
        # Clients that go on for ever: the end of the job does not wait for theirs.
        clients += [socket.create_connection((host, int(port))) for _ in range(40)]
        ended = threading.Event()
        dripping = threading.Thread(target=self.drip, args=(clients[-40:], ended))
        dripping.start()
        try:
            os.kill(self.rank_pid(job, 0), signal.SIGKILL)
            self.assert_ends_with_one_message(job, "rank 0 ", "signal 9")
        finally:
            ended.set()
            dripping.join()
            for client in clients:
                client.close()

    @staticmethod
    def drip(clients, ended):
        for client in clients:
            client.sendall(b"GET /status HTTP/1.1\r\nX: ")
        while not ended.wait(0.3):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(b"x")

    def test_control_over_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError as error:
            self.skipTest(f"no IPv6 loopback here: {error}")
        job = self.start("train", *MICRO, "--data", self.data, "--layout", "dp=1", "--steps", "1000000", "--control", "[::1]:0")
        address = next(line.split()[4] for line in job.stderr if line.startswith("control:"))
        self.assertTrue(address.startswith("[::1]:"), address)
        code, out, err = self.run_cli("status", "--job", address)
        self.assertEqual(code, 0, err)
        self.assertIn("micro-llama", out)
        job.send_signal(signal.SIGINT)
        self.finish(job)

    def test_a_killed_launcher_takes_its_ranks_along(self):
        job = self.start("train", *MICRO, "--data", self.data, "--layout", "dp=2", "--steps", "100000")
        deadline = time.monotonic() + 60
        children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children")
        while len(children.read_text().split()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        job.kill()
        job.communicate()  # check_no_orphans does the rest


if __name__ == "__main__":
    main()
