#!/usr/bin/env python3
"""Jobs of real processes that switch in mode stream: within the budget, or not at all."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import NO_DIGEST, Cli, events, main

MIB = 1 << 20


def losses(lines):
    return {e["step"]: e["loss"] for e in events(lines, "step")}


class Streaming(Cli):
    def test_streaming_switches_change_nothing_but_the_layout(self):
        static = self.train("--layout", "dp=1", "--steps", "160")
        elastic = self.train("--layout", "dp=2,zero=1", "--steps", "160", "--verify", "full", "--nproc", "4", "--mode",
                             "stream", "--budget", "4MiB", "--switch", "3:tp=2,dp=2,zero=1", "--switch",
                             "60:pp=3,split=1+1+1,ranks=3+1+2", "--switch", "110:dp=4,zero=1")
        reports = events(elastic, "switch")
        self.assertEqual(len(reports), 3)
        for report in reports:
            self.assertEqual(report["outcome"], "committed", report)
            self.assertEqual(report["digest_before"], report["digest_after"], report)
            self.assertNotEqual(report["digest_before"], NO_DIGEST, report)
            self.assertLessEqual(report["peak_extra_bytes"], 4 * MIB, report)
            self.assertGreaterEqual(report["phases"], 1, report)
        for step, loss in losses(static).items():
            self.assertAlmostEqual(losses(elastic)[step], loss, delta=2e-5 * loss, msg=f"step {step}")

    def test_parameters_are_derived_from_masters_that_stream(self):
        # Digests tell that what is computed has the bits of what would have been moved.
        lines = self.train("--layout", "dp=2,zero=1", "--steps", "120", "--dtype", "bf16", "--derive", "--verify", "full",
                           "--nproc", "4", "--mode", "stream", "--switch", "3:dp=4", "--switch", "60:tp=2,dp=1")
        reports = events(lines, "switch")
        self.assertEqual([report["outcome"] for report in reports], ["committed"] * 2, reports)
        for report in reports:
            self.assertEqual(report["digest_before"], report["digest_after"], report)
            self.assertNotEqual(report["digest_before"], NO_DIGEST, report)

    def test_a_budget_that_cannot_work_is_refused_with_the_smallest_that_would(self):
        switch = ["--layout", "dp=2,zero=1", "--steps", "60", "--nproc", "2", "--mode", "stream", "--switch", "2:tp=2"]
        (report,) = events(self.train(*switch, "--budget", "1000"), "switch")
        self.assertEqual(report["outcome"], "rolled_back", report)
        least = int(re.search(r"smallest that would do is (\d+) bytes", report["reason"]).group(1))
        (report,) = events(self.train(*switch, "--budget", str(least)), "switch")
        self.assertEqual(report["outcome"], "committed", report)
        self.assertLessEqual(report["peak_extra_bytes"], least)


if __name__ == "__main__":
    main()
