#!/usr/bin/env python3
"""Bad input is refused before anything starts: one message, the value in it, exit code not 0."""

import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import MICRO, Cli, main


class RefusedInput(Cli):
    def train_arguments(self, *more, layout="dp=1", data=None, steps="3"):
        return ["train", *MICRO, "--data", data or self.data, "--layout", layout, "--steps", steps, *more]

    def test_spec(self):
        for spec, expected in [("tp", "tp"), ("tp=0", "tp=0"), ("tp=x", "tp=x"), ("qq=2", "qq"),
                               ("tp=2,tp=2", "tp"), ("cp=2", "cp=2"), ("zero=7", "zero=7"),
                               ("pp=2,split=4+3", "4+3"), ("dp=2,ranks=0", "ranks"),
                               ("dp=2,ranks=0+0", "0"), ("zero=1,zero_order=sideways", "sideways")]:
            with self.subTest(spec=spec):
                self.refuse(self.train_arguments(layout=spec), "layout", expected)

    def test_layout_that_does_not_fit_the_model(self):
        # micro-llama: 3 layers, 4 heads, 2 kv heads.
        self.refuse(self.train_arguments(layout="tp=4"), "tp=4", "2")
        self.refuse(self.train_arguments(layout="pp=4"), "pp=4", "3")
        self.refuse(self.train_arguments(layout="pp=2,split=2+2"), "split", "3")

    def test_layout_that_does_not_fit_the_ranks(self):
        self.refuse(self.train_arguments("--nproc", "2", layout="dp=4"), "4", "2")
        self.refuse(self.train_arguments("--nproc", "2", layout="dp=2,ranks=1-2"), "2")

    def test_global_batch_is_never_rounded(self):
        # C21: 12 sequences in micro-batches of 2 split over dp 2, 3 and 6, not over 4 or 5.
        for dp in (4, 5):
            self.refuse(["train", "--model", "micro-llama", "--data", self.data, "--layout", f"dp={dp}", "--steps", "3",
                         "--global-batch", "12", "--micro-batch", "2"], "12", "2", str(dp))

    def test_a_scheduled_switch_is_checked_before_the_start(self):
        self.refuse(self.train_arguments("--switch", "1:pp=4"), "--switch 1:pp=4")
        self.refuse(self.train_arguments("--switch", "nonsense"), "nonsense", "STEP:SPEC")
        self.refuse(self.train_arguments("--switch", "-1:dp=1"), "STEP:SPEC")
        self.refuse(self.train_arguments("--switch", "3:dp=2"), "3:dp=2", "ends after step 3")

    def test_data(self):
        missing = str(self.path / "missing.txt")
        self.refuse(self.train_arguments(data=missing), missing)
        short = self.path / "short.txt"
        short.write_text("too short")
        self.refuse(self.train_arguments(data=str(short)), str(short), "9")
        self.refuse(self.train_arguments(data=str(self.path)), str(self.path))

    def test_model(self):
        self.refuse(["train", "--model", "no-such-model", "--data", self.data, "--layout", "dp=1", "--steps", "1"],
                    "no-such-model", "tiny-llama")
        broken = self.path / "config.json"
        broken.write_text('{"model_type": "llama", "hidden_size": 32}')
        self.refuse(["train", "--model", str(broken), "--data", self.data, "--layout", "dp=1", "--steps", "1"],
                    "config.json")

    def test_numbers(self):
        self.refuse(self.train_arguments(steps="0"), "--steps 0")
        self.refuse(self.train_arguments("--micro-batch", "0"), "--micro-batch 0")
        self.refuse(self.train_arguments("--nproc", "-1"), "--nproc -1")
        self.refuse(self.train_arguments("--lr", "-1"), "--lr -1")
        self.refuse(self.train_arguments("--verify", "maybe"), "maybe", "full")

    def test_what_this_version_has_not(self):
        self.refuse(self.train_arguments("--dtype", "bf16"), "--dtype bf16")
        self.refuse(self.train_arguments("--mode", "stream"), "--mode stream")
        self.refuse(self.train_arguments("--transport", "ucx"), "--transport ucx")

    def test_control_address(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.refuse(self.train_arguments("--control", address), address, "in use")
        self.refuse(self.train_arguments("--control", "0.0.0.0:0"), "loopback")
        self.refuse(self.train_arguments("--control", "127.0.0.1:99999"), "99999")

    def test_resume_from_nothing(self):
        nothing = str(self.path / "nothing")
        self.refuse(self.train_arguments("--resume", nothing), nothing)

    def test_no_job_behind_the_address(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.refuse(["switch", "--job", address, "dp=2"], address)
        self.refuse(["status", "--job", address], address)


if __name__ == "__main__":
    main()
