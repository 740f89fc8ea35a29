#!/usr/bin/env python3
"""`dynatrain bench` and `simulate` through real processes: state equal before and after, within the budget."""

import json
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import Cli, main

MIB = 1 << 20

# Ranks, old and new layout; none of one shape.
WORLDS = [
    (2, "dp=2,zero=1", "tp=2,zero=1"),
    (3, "dp=3,zero=1", "pp=3,split=1+1+1"),
    (4, "tp=2,pp=2,zero=1", "dp=4,zero=1"),
    (5, "dp=5,zero=1,zero_order=forward-contiguous", "tp=2,dp=2,zero=1,ranks=1-4"),
    (7, "dp=7,zero=1", "pp=2,dp=3,split=2+1,zero=1,ranks=0-5"),
    (8, "tp=2,pp=2,dp=2,zero=1", "pp=2,dp=4,split=1+2,zero=1"),
    (16, "tp=2,dp=8,zero=1", "pp=3,dp=5,split=1+1+1,zero=1"),
]


class Bench(Cli):
    def bench(self, *more, model="micro-llama"):
        code, out, err = self.run_cli("bench", "--model", model, *more, "--json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_state_is_equal_before_and_after_on_every_number_of_ranks(self):
        digests = set()
        for ranks, old, new in WORLDS:
            for mode in ("keep", "stream"):
                with self.subTest(ranks=ranks, mode=mode):
                    # The program itself compares the digests; a difference is an error.
                    result = self.bench("--from", old, "--to", new, "--nproc", str(ranks), "--mode", mode, "--repeat", "1")
                    self.assertGreater(result["moved_bytes"], 0)
                    self.assertGreater(result["wire_bytes"], result["moved_bytes"])
                    self.assertEqual(result["nproc"], ranks)
                    digests.add(result["digest"])
        self.assertEqual(len(digests), 1, "the same state in every layout")

    def test_both_transports_move_the_same(self):
        results = [self.bench("--from", "dp=3,zero=1", "--to", "tp=2", "--repeat", "2", "--transport", transport)
                   for transport in ("gloo", "local")]
        for name in ("moved_bytes", "wire_bytes", "messages", "digest", "peak_extra_bytes"):
            self.assertEqual(results[0][name], results[1][name], name)
        for result in results:
            for name in ("seconds_median", "seconds_min", "limit_seconds", "achieved_over_limit", "pack_seconds",
                         "wire_seconds", "unpack_seconds", "check_seconds", "predicted_seconds"):
                self.assertGreaterEqual(result[name], 0, name)
            self.assertLessEqual(result["seconds_min"], result["seconds_median"])

    def test_c31_no_process_takes_much_more_than_its_larger_shard(self):
        # The optimizer of a ZeRO-1 job, 256 MiB and more over four processes; extra memory of 16 MiB.
        result = self.bench("--state", "640MiB", "--dtype", "fp32", "--from", "dp=4,zero=1", "--to", "dp=2,zero=1", "--mode",
                            "stream", "--budget", "16MiB", "--repeat", "2", model="llama2-7b")
        self.assertGreater(result["state_bytes"], 3 / 2 * 256 * MIB)  # two thirds are moments
        self.assertGreater(result["phases"], 1)
        self.assertLessEqual(result["peak_extra_bytes"], 16 * MIB)
        self.assertLessEqual(result["measured_peak_extra_bytes"], result["peak_extra_bytes"])

    def test_a_budget_that_cannot_work_is_refused_with_the_smallest_that_would(self):
        arguments = ["bench", "--model", "llama2-7b", "--state", "32MiB", "--from", "dp=2,zero=1", "--to", "tp=2", "--mode",
                     "stream", "--transport", "local", "--repeat", "1"]
        code, _, err = self.run_cli(*arguments, "--budget", "1KiB")
        self.assertNotEqual(code, 0)
        self.assertIn("1024 bytes", err)
        least = int(re.search(r"(\d+) bytes would do", err).group(1))
        result = self.bench(*arguments[3:], "--budget", str(least), model="llama2-7b")
        self.assertLessEqual(result["peak_extra_bytes"], least)
        code, _, err = self.run_cli(*arguments, "--budget", str(least - 1))
        self.assertNotEqual(code, 0)

    def test_a_path_that_is_not_utf8(self):
        odd = self.path / os.fsdecode(b"caf\xe9.json")
        odd.write_text('{"nodes": 1, "ranks_per_node": 2, "intra_node_bytes_per_s": 1e9}')
        base = ["bench", "--model", "micro-llama", "--from", "dp=2", "--to", "tp=2", "--repeat", "1", "--topology", str(odd),
                "--json"]
        code, out, err = self.run_cli(*base, "--transport", "local")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("caf\ufffd.json", json.loads(out)["topology"])
        self.refuse(base, "an argument is not valid UTF-8", "caf\ufffd.json")

    def test_refused_input(self):
        base = ["bench", "--model", "micro-llama", "--from", "dp=2", "--to", "tp=2"]
        self.refuse([*base, "--transport", "pigeon"], "pigeon", "gloo")
        self.refuse([*base, "--repeat", "0"], "--repeat 0")
        self.refuse([*base, "--nproc", "1"], "--nproc 1", "2")
        self.refuse([*base, "--state", "lots"], "--state lots")
        self.refuse([*base, "--state", "10"], "10", "narrowest")
        self.refuse([*base, "--mode", "teleport"], "teleport", "stream")
        self.refuse(["bench", "--model", "micro-llama", "--from", "pp=7", "--to", "tp=2"], "--from pp=7")

    def test_simulate(self):
        base = ["simulate", "--model", "llama2-7b", "--from", "tp=8,dp=2,zero=1", "--to", "tp=4,dp=4,zero=1", "--topology",
                "a800x16"]
        code, out, err = self.run_cli(*base, "--timeline", "--json")
        self.assertEqual(code, 0, err)
        result = json.loads(out)
        self.assertGreaterEqual(result["seconds"], result["fullest_link_seconds"])
        self.assertGreaterEqual(result["seconds"], result["bound_seconds"])
        self.assertEqual(len(result["rank_seconds"]), 16)
        self.assertEqual(result["links"], sorted(result["links"], key=lambda link: -link["busy_seconds"]))
        self.assertEqual(max(entry["end"] for entry in result["timeline"]), result["seconds"])
        code, out, err = self.run_cli(*base)
        self.assertEqual(code, 0, err)
        self.assertIn("fullest links", out)
        self.refuse([*base, "--relays", "perhaps"], "perhaps", "auto")
        self.refuse([*base[:-1], "nowhere.json"], "nowhere.json")


if __name__ == "__main__":
    main()
