#!/usr/bin/env python3
"""`dynatrain plan` as a program: figures as JSON, a page, an explanation, and refusals that name what is wrong."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import Cli, main

LAYOUTS = ["--from", "pp=2,dp=4,ep=2,zero=1", "--to", "tp=3,dp=4,ep=4,zero=1"]
FIGURES = ["moved_bytes", "wire_bytes", "kept_bytes", "lower_bound_bytes", "max_rank_in_bytes", "max_rank_out_bytes",
           "max_node_in_bytes", "cross_node_bytes", "bound_seconds", "planning_seconds"]
OF_PROGRAMS = ["messages", "phases", "peak_extra_bytes", "predicted_seconds"]


class PlanCommand(Cli):
    def setUp(self):
        super().setUp()
        self.lab = self.path / "lab.json"
        self.lab.write_text('{"name": "lab", "nodes": 4, "ranks_per_node": 4, "intra_node_bytes_per_s": 4e9, '
                            '"inter_node_bytes_per_s": 1e9}')

    def plan(self, *more):
        code, out, err = self.run_cli("plan", "--model", "tiny-moe", *LAYOUTS, "--topology", str(self.lab), *more)
        self.assertEqual(code, 0, err)
        return out, err

    def test_json_alone_on_standard_output(self):
        out, err = self.plan("--json", "--explain")
        plan = json.loads(out)
        for key in FIGURES + OF_PROGRAMS:
            self.assertGreaterEqual(plan[key], 0, key)
        self.assertEqual(plan["moved_bytes"], plan["lower_bound_bytes"])
        self.assertEqual(plan["phases"], 1)
        self.assertGreaterEqual(plan["predicted_seconds"], plan["bound_seconds"])
        self.assertIn("fullest rank in", err)

    def test_only_what_could_be_asked_for_is_explained_as_cheaper(self):
        same = ["plan", "--model", "tiny-moe", "--from", "dp=2", "--to", "dp=2", "--no-programs", "--explain", "--dtype"]
        for dtype in ("bf16", "fp32"):
            code, out, err = self.run_cli(*same, dtype)
            self.assertEqual((code, err), (0, ""))
            self.assertEqual("--derive" in out, dtype == "bf16", out)

    def test_figures_that_are_not_asked_for_are_null(self):
        for flag in ("--no-programs", "--derive"):
            plan = json.loads(self.plan("--json", flag)[0])
            for key in OF_PROGRAMS:
                self.assertEqual(plan[key] is None, flag == "--no-programs", (flag, key))

    def test_files(self):
        page, figures = self.path / "heat.html", self.path / "plan.json"
        out, _ = self.plan("--report", str(page), f"--json={figures}", "--roles", "free")
        self.assertIn("traffic in", out)
        self.assertIn("free", json.loads(figures.read_text())["roles"])
        self.assertIn("<canvas", page.read_text())

    def test_a_budget_means_phases(self):
        whole = json.loads(self.plan("--json", "--mode", "stream")[0])
        code, _, err = self.run_cli("plan", "--model", "tiny-moe", *LAYOUTS, "--topology", str(self.lab), "--mode", "stream",
                                    "--budget", "0")
        self.assertEqual(code, 1)
        self.assertIn("would do", err)
        least = int(err.split("; ")[1].split(" bytes would do")[0])
        self.assertLessEqual(least, whole["peak_extra_bytes"])
        self.assertLessEqual(json.loads(self.plan("--json", "--mode", "stream", "--budget", str(least))[0])["peak_extra_bytes"],
                             least)

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([self.program, "plan", "--model", "tiny-moe", *LAYOUTS], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (1, "dynatrain: standard output cannot be written\n"))

    def test_a_path_that_is_not_utf8(self):
        odd = self.path / os.fsdecode(b"caf\xe9.json")
        self.lab.rename(odd)
        for command in ("plan", "simulate"):
            code, out, err = self.run_cli(command, "--model", "tiny-moe", *LAYOUTS, "--topology", str(odd), "--json")
            self.assertEqual((code, err), (0, ""))
            self.assertEqual(json.loads(out)["model"], "tiny-moe")

    def test_many_ranks_are_told_to_take_a_while(self):
        many = ["plan", "--model", "micro-llama", "--from", "dp=4096", "--to", "dp=4096", "--no-programs", "--json"]
        code, out, err = self.run_cli(*many)
        self.assertEqual((code, json.loads(out)["moved_bytes"]), (0, 0))
        self.assertEqual(err, "dynatrain: planning 4096 ranks, which takes a while\n")

    def test_refusals(self):
        base = ["plan", "--model", "tiny-moe", *LAYOUTS]
        self.refuse([*base, "--topology", "no-such"], "no-such", "a800x16")
        self.refuse([*base, "--mode", "both"], "both", "keep or stream")
        self.refuse([*base, "--roles", "any"], "any", "identity or free")
        for budget in ("-1", "abc", "1e9", "9223372036854775808", "18446744073709551617", "4 "):
            self.refuse([*base, "--budget", budget], f"--budget {budget}: give ")
        self.refuse([*base, "--budget", "1GiB", "--no-programs"], "--budget 1073741824 with --no-programs", "give one of both")
        self.refuse([*base[:-1], "dp=2,ranks=0+100000"], "rank 100000", "0 to 16383")
        self.refuse([*base, "--dtype", "fp8"], "fp8")
        self.refuse([*base, "--dtype", "fp32", "--derive"], "--derive with --dtype fp32: only bf16 parameters", "give --dtype bf16")
        many = ["plan", "--model", "tiny-llama", "--from", "dp=1", "--to"]
        self.refuse([*many, "dp=1000000"], "--to dp=1000000: 1000000 ranks", "at most 16384")
        self.refuse([*many, "dp=99999999999999"], "dp=99999999999999", "1 to 1048576")
        self.refuse([*many, "vpp=33"], "vpp=33", "7 layers", "pp * vpp of 1 to 7")
        self.refuse([*many, "dp=2,ep=2"], "ep=2: model tiny-llama has no experts; right is ep=1")
        self.refuse([*many, "dp=2,zero_order=forward-bucketed:-5"], "'bucketed:-5' does not fit", "at least 1")
        self.assertLess(len(self.refuse([*many, "ranks=" + "1+" * 10_000], "...")), 500)
        code, _, err = self.run_cli(*base, "--report", str(self.path / "no" / "such.html"))
        self.assertEqual(code, 1)
        self.assertIn("such.html: cannot write it", err)
        hole = self.path / "hole.json"
        hole.write_text('{"nodes": ["0-3", "5-12"]}')
        self.refuse([*base, "--topology", str(hole)], "hole.json", "rank 4 is on no node")
        self.lab.write_text('{"nodes": 2, "ranks_per_node": 4, "intra_node_bytes_per_s": 1e9, "nic_bytes_per_s": 1e8}')
        self.refuse([*base, "--topology", str(self.lab)], "--to", "12", "8")
        self.refuse(["plan", "--model", "tiny-moe", "--from", "tp=4", "--to", "dp=1"], "--from tp=4", "3 key-value heads")


if __name__ == "__main__":
    main()
