#!/usr/bin/env python3
"""Bad input is refused before anything starts: one message, the value in it, exit code not 0."""

import pathlib
import resource
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
        self.refuse(self.train_arguments("--exact-switches", "--switch", "1:dp=2", "--switch", "1:dp=1"),
                    "two switches right after step 1")

    def test_a_long_value_is_not_echoed_whole(self):
        long = "dp=" + "9" * 20_000
        for arguments in (self.train_arguments("--switch", f"1:{long}"), self.train_arguments("--switch", long),
                          self.train_arguments(layout="ranks=" + "1+" * 10_000), self.train_arguments("--control", long)):
            self.assertLess(len(self.refuse(arguments, "...")), 700)

    def test_more_memory_than_there_is(self):
        # 69 billion parameters, eight whole copies.
        self.refuse(["train", "--model", "llama2-70b", "--data", self.data, "--layout", "dp=8", "--steps", "1", "--seq", "32"],
                    "not enough memory", "dp=8", "8 processes", "6.62 TB of parameters and moments", "2.21 TB of gradients",
                    "is available")

    def test_files_that_may_be_open(self):
        # The store and the first ranks need some twenty.
        self.refuse_late(self.train_arguments("--nproc", "64"), "cannot start rank", "ulimit -n", "40 files",
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))

    def refuse_late(self, arguments, *expected, **options):
        """As refuse, but what memory is needed may have been told before."""
        code, _, err = self.run_cli(*arguments, **options)
        self.assertNotEqual(code, 0, err)
        (message,) = [line for line in err.splitlines() if not line.startswith("memory: ")]
        for text in expected:
            self.assertIn(text, message)

    def test_data(self):
        missing = str(self.path / "missing.txt")
        self.refuse(self.train_arguments(data=missing), f"--data: data file {missing}")
        short = self.path / "short.txt"
        short.write_text("too short")
        self.refuse(self.train_arguments(data=str(short)), str(short), "9")
        self.refuse(self.train_arguments(data=str(self.path)), str(self.path))

    def test_model(self):
        self.refuse(["train", "--model", "no-such-model", "--data", self.data, "--layout", "dp=1", "--steps", "1"],
                    "--model: ", "no-such-model", "tiny-llama")
        broken = self.path / "config.json"
        broken.write_text('{"model_type": "llama", "hidden_size": 32}')
        self.refuse(["train", "--model", str(broken), "--data", self.data, "--layout", "dp=1", "--steps", "1"],
                    "config.json")

    def test_numbers(self):
        self.refuse(self.train_arguments(steps="0"), "--steps 0")
        self.refuse(self.train_arguments("--micro-batch", "0"), "--micro-batch 0")
        self.refuse(self.train_arguments("--nproc", "-1"), "--nproc -1")
        self.refuse(self.train_arguments("--nproc", "0"), "--nproc 0", "1 to 256")
        for seed in ("-1", "18446744073709551616"):
            self.refuse(self.train_arguments("--seed", seed), f"--seed {seed}", "0 to 18446744073709551615")
        self.refuse(self.train_arguments("--step-timeout", "0"), "--step-timeout 0", "seconds")
        self.refuse(self.train_arguments("--fill", "ones"), "--fill ones", "nan")
        self.refuse(self.train_arguments("--lr", "-1"), "--lr -1")
        self.refuse(self.train_arguments("--verify", "maybe"), "--verify maybe", "off or moved or full")

    def test_values_that_are_no_numbers_or_too_large(self):
        self.refuse(self.train_arguments(steps="99999999999999999999"), "--steps 99999999999999999999", "1 to 9223372036854775807")
        for flag, value, right in [("--save-every", "0", "1 to 9223372036854775807"), ("--stop-after", "0", "1 to "),
                                   ("--nproc", "two", "1 to 256"), ("--global-batch", "1e3", "1 to 2147483647"),
                                   ("--micro-batch", "1.5", "1 to 2147483647"), ("--seq", "-1", "1 to 2147483647"),
                                   ("--lr", "nan", "at least 0"), ("--step-timeout", "1h", "0.1 to 86400")]:
            with self.subTest(flag=flag):
                self.refuse(self.train_arguments(flag, value), f"{flag} {value}: give ", right)
        self.refuse(["switch", "--job", "127.0.0.1:1", "dp=1", "--timeout", "soon"], "--timeout soon: give ", "0 to 1000000000")

    def test_arguments_that_cannot_be_read(self):
        self.refuse(self.train_arguments("--save"), "--save: its value is missing: directory for a checkpoint")
        self.refuse(self.train_arguments("--lr", "1", "--lr", "2"), "--lr 1 and 2: give it once")
        self.refuse(self.train_arguments("--stpes", "3"), "unknown argument --stpes 3", "--help")
        self.refuse(["train", "--model", "micro-llama"], "--data is missing: a text")
        self.refuse(["switch", "--job", "127.0.0.1:1"], "spec is missing: the new layout")
        self.refuse(["export", str(self.path), "-o", str(self.path), "--dtype", "fp8"], "--dtype fp8: give fp32 or bf16")
        self.refuse(["status", "--job", "nowhere"], "--job: address nowhere: expected HOST:PORT")
        for arguments, given in (([], ""), (["fly"], "fly: ")):
            code, out, err = self.run_cli(*arguments)
            self.assertEqual((code, out), (1, ""))
            self.assertEqual(err, f"dynatrain: {given}give a command: plan, simulate, train, bench, import, export, switch, status\n")
        code, out, err = self.run_cli("train", "--help")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("--save-every", out)

    def test_places_that_cannot_be_written(self):
        taken = self.path / "taken"
        taken.write_text("")
        self.refuse_late(self.train_arguments("--log-dir", str(taken / "logs")), f"--log-dir {taken / 'logs'}: cannot make it")
        self.refuse_late(self.train_arguments(f"--json={taken / 'lines'}"), f"--json={taken / 'lines'}: cannot write there")

    def test_modes_and_budgets(self):
        self.refuse(self.train_arguments("--mode", "drop"), "--mode drop", "keep or stream")
        self.refuse(self.train_arguments("--budget", "much"), "--budget much", "64MiB")

    def test_what_this_version_has_not(self):
        self.refuse(self.train_arguments("--dtype", "fp8"), "--dtype fp8", "bf16")
        self.refuse(self.train_arguments("--derive"), "--derive", "--dtype bf16")
        self.refuse(self.train_arguments("--transport", "ucx"), "--transport ucx")

    def test_control_address(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.refuse(self.train_arguments("--control", address), address, "in use")
        for host in ("0.0.0.0", "127.0.0.999", "[::2]"):
            self.refuse(self.train_arguments("--control", f"{host}:7070"), f"{host}:7070", "only loopback", "[::1]:7070")
        self.refuse(self.train_arguments("--control", "127.0.0.1:99999"), "--control: ", "99999")
        self.refuse(self.train_arguments("--control", "[::1]"), "[::1]", "HOST:PORT")

    def test_version(self):
        code, out, err = self.run_cli("--version")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"^dynatrain \d+\.\d+\.\d+\n$")

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
