#!/usr/bin/env python3
"""Checkpoints of real jobs: resumed anywhere, damaged, interrupted, killed, out of space."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import MICRO, NO_DIGEST, Cli, events, main

TEN_LAYOUTS = ["dp=1", "dp=2", "dp=4,zero=1", "tp=2,dp=1", "tp=2,pp=2,dp=1", "pp=3,dp=1", "pp=2,dp=2,zero=1,split=1+2",
               "pp=2,dp=1,zero_order=reverse-contiguous-start:16-end:64", "tp=2,dp=2,zero=1,ranks=3+1+0+2",
               "dp=4,zero=1,zero_order=forward-bucketed:5000-endx:7"]
KILLS = 20


def losses(lines):
    return {e["step"]: e["loss"] for e in events(lines, "step")}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


class CheckpointCase(Cli):
    def setUp(self):
        super().setUp()
        self.store = self.path / "checkpoints"

    def save_at(self, step, *arguments, steps=12, layout="tp=2,dp=2,zero=1"):
        lines = self.train("--layout", layout, "--steps", str(steps), "--stop-after", str(step), "--save", str(self.store), *arguments)
        return events(lines, "saved")[-1]

    def resume_arguments(self, *arguments, layout="dp=1", micro=MICRO, data=None):
        return ["train", *micro, "--data", data or self.data, "--layout", layout, "--steps", "12", "--resume", str(self.store), *arguments]

    def begin(self, *arguments, micro=MICRO):
        """A running job and its JSON lines, once it has trained a step."""
        path = self.path / f"lines-{time.monotonic_ns()}.jsonl"
        job = self.start("train", *micro, "--data", self.data, f"--json={path}", *arguments)
        self.wait_for(job, path, "step")
        return job, path

    def wait_for(self, job, path, event):
        deadline = time.monotonic() + 60
        while not (path.exists() and f'"{event}"' in path.read_text()):
            if job.poll() is not None or time.monotonic() > deadline:
                job.kill()
                self.fail(f"no {event}: {job.communicate()}")
            time.sleep(0.005)


class Checkpoints(CheckpointCase):
    def test_one_checkpoint_goes_on_in_ten_layouts(self):
        whole = losses(self.train("--layout", "tp=2,dp=2,zero=1", "--steps", "12"))
        saved = self.save_at(6)
        self.assertRegex(saved["digest"], "^[0-9a-f]{16}$")
        self.assertNotEqual(saved["digest"], NO_DIGEST)
        for layout in TEN_LAYOUTS:
            with self.subTest(layout=layout):
                lines = self.train("--layout", layout, "--steps", "12", "--stop-after", "9", "--resume", str(self.store))
                (resumed,) = events(lines, "resumed")
                self.assertEqual(resumed["digest"], saved["digest"])
                after = losses(lines)
                self.assertEqual(list(after), [7, 8, 9])
                for step, loss in after.items():
                    self.assertAlmostEqual(loss, whole[step], delta=2e-5 * loss, msg=f"step {step}")

    def test_a_signal_saves_and_another_run_goes_on(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                shutil.rmtree(self.store, ignore_errors=True)
                job, path = self.begin("--layout", "tp=2,dp=1", "--nproc", "3", "--steps", "100000", "--save", str(self.store))
                job.send_signal(number)
                code, _, err = self.finish(job)
                self.assertEqual(code, 128 + number, err)
                (saved,) = events(lines_of(path), "saved")
                last = max(losses(lines_of(path)))
                self.assertEqual(saved["step"], last)
                self.assertIn(f"saved step {last} to {saved['path']}", err)
                lines = self.train("--layout", "dp=2", "--steps", "100000", "--stop-after", str(last + 2), "--resume", str(self.store))
                self.assertEqual(list(losses(lines)), [last + 1, last + 2])

    def test_a_signal_without_a_directory_leaves_cleanly_and_says_so(self):
        job, _ = self.begin("--layout", "dp=2", "--steps", "100000")
        job.send_signal(signal.SIGTERM)
        code, _, err = self.finish(job)
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.assertIn("nothing was saved", err)

    def test_signals_to_the_whole_group_save_too(self):
        job, path = self.begin("--layout", "dp=2", "--steps", "100000", "--save", str(self.store))
        children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        for pid in (*map(int, children), job.pid):
            os.kill(pid, signal.SIGTERM)
        code, _, err = self.finish(job)
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.assertIn("saved step", err)
        self.assertEqual(len(events(lines_of(path), "saved")), 1)

    def test_another_run_is_refused_and_another_schedule_is_told(self):
        self.save_at(3)
        other = self.path / "other.txt"
        other.write_text(pathlib.Path(self.data).read_text()[:-7] + "changed")
        micro = lambda **flags: [x for key, value in {"model": "micro-llama", "global-batch": "4", "seq": "32", **flags}.items()
                                 for x in (f"--{key}", value)]
        self.refuse(self.resume_arguments(data=str(other)), "--resume", "saved with data", "hash")
        self.refuse(self.resume_arguments(micro=micro(seq="16")), "saved with seq 32, this run has 16")
        self.refuse(self.resume_arguments(micro=micro(**{"global-batch": "8"})), "saved with global-batch 4, this run has 8")
        self.refuse(self.resume_arguments("--seed", "2"), "saved with seed 1, this run has 2")
        self.refuse(self.resume_arguments(micro=micro(model="tiny-llama")), "another model")
        self.refuse(self.resume_arguments("--stop-after", "3"), "nothing is left to do")
        code, _, err = self.run_cli(*self.resume_arguments("--lr", "0.0005", "--stop-after", "4"))
        self.assertEqual(code, 0, err)
        self.assertIn("was saved with --lr 0.001; this run goes on with 0.0005", err)

    def test_damage_is_refused_by_name(self):
        saved = pathlib.Path(self.save_at(3)["path"])
        whole = self.path / "whole"
        shutil.copytree(saved, whole)
        info, shard = saved / "checkpoint.json", saved / "rank-00001.safetensors"

        def broken(*expected):
            code, _, err = self.run_cli(*self.resume_arguments(layout="pp=2,dp=1"))
            self.assertEqual(code, 1)
            for text in expected:
                self.assertIn(text, err.splitlines()[-1])
            shutil.rmtree(saved)
            shutil.copytree(whole, saved)

        data = bytearray(shard.read_bytes())
        data[-5] ^= 1
        shard.write_bytes(data)
        broken(str(shard), "has changed since it was saved")
        shard.write_bytes(shard.read_bytes()[:-1])
        broken(str(shard), "bytes, it was saved with")
        shard.unlink()
        broken(str(shard), "No such file")
        info.write_text(info.read_text().replace('"step": 3', '"step": 4'))
        broken(str(info), "damaged")
        info.write_text("{}")
        broken(str(info), "damaged")
        info.unlink()
        broken("no complete checkpoint", str(self.store))
        foreign = self.path / "foreign"
        foreign.mkdir()
        (foreign / "checkpoint.json").write_text('{"format": 1}')
        self.refuse([*self.resume_arguments()[:-1], str(foreign)], "format 1")

    def test_kills_while_saving_leave_something_complete(self):
        seed = random.randrange(2**32)
        rng = random.Random(seed)
        step = 0
        for round_ in range(KILLS):
            resume = ["--resume", str(self.store)] if round_ else []
            layout = rng.choice(["dp=1", "dp=2,zero=1"])
            job, path = self.begin("--layout", layout, "--steps", "1000000", "--save", str(self.store), "--save-every", "1", *resume)
            self.wait_for(job, path, "saved")
            time.sleep(rng.uniform(0, 0.1))
            job.kill()
            job.communicate()
            done = lines_of(path)
            if round_:
                (resumed,) = events(done, "resumed")
                self.assertGreaterEqual(resumed["step"], step, f"seed {seed} round {round_}: a kill took something back")
            step = max(e["step"] for e in events(done, "saved"))
        self.assertGreater(step, KILLS)


class FullDisk(CheckpointCase):
    def test_a_full_disk_keeps_the_old_checkpoint_and_training_goes_on(self):
        if os.geteuid() != 0:
            self.skipTest("NOT RUN: a small disk can be made by root only")
        self.store.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(self.store)], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest(f"NOT RUN: cannot mount a small disk: {mounted.stderr.decode()}")
        self.addCleanup(subprocess.run, ["umount", str(self.store)], check=True)
        lines = self.path / "lines.jsonl"
        code, _, err = self.run_cli("train", *MICRO, "--data", self.data, "--layout", "dp=2,zero=1", "--steps", "12", "--save", str(self.store),
                                    "--save-every", "2", f"--json={lines}")
        told = lines_of(lines)
        self.assertEqual(code, 1, err)
        self.assertIn("the last checkpoint could not be saved", err)
        self.assertIn("No space left on device", err)
        self.assertEqual(max(losses(told)), 12)
        failed = events(told, "save_failed")
        self.assertGreater(len(failed), 0)
        good = max(e["step"] for e in events(told, "saved"))
        self.assertEqual([p.name for p in self.store.iterdir() if "partial" in p.name], [])
        lines = self.train("--layout", "tp=2,dp=1", "--steps", "12", "--stop-after", str(good + 1), "--resume", str(self.store))
        self.assertEqual(list(losses(lines)), [good + 1])


if __name__ == "__main__":
    main()
