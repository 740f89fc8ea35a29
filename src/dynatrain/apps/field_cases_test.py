#!/usr/bin/env python3
"""Cases C15, C20, C21 and C30 in jobs of real processes: what each rank read, held and computed, told by the job itself."""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "scripts"))
import compare_state
from cli_test_support import NO_DIGEST, Cli, events, main, text_file

SEQ = 32


def series(lines, field):
    return {e["step"]: e[field] for e in events(lines, "step")}


class FieldCase(Cli):
    model = "micro-llama"

    def job(self, *arguments, global_batch=4, steps=10, data=None):
        """The JSON lines of a run that must succeed, --verify full and new memory filled with NaN."""
        out = self.path / f"lines-{len(list(self.path.iterdir()))}.jsonl"
        code, _, err = self.run_cli("train", "--model", self.model, "--data", data or self.data, "--seq", str(SEQ),
                                    "--global-batch", str(global_batch), "--steps", str(steps), "--verify", "full",
                                    "--fill", "nan", "--exact-switches", f"--json={out}", *arguments)
        self.assertEqual(code, 0, err)
        return [json.loads(line) for line in out.read_text().splitlines()]

    def assert_switched(self, lines, *steps_and_specs):
        """Exactly these switches were made, each right after its step."""
        reports = sorted(events(lines, "switch"), key=lambda r: r["id"])
        self.assertEqual([(r["outcome"], r["step"], r["to"]) for r in reports],
                         [("committed", *expected) for expected in steps_and_specs])
        for report in reports:
            self.assertEqual((report["digest_before"], report["replica_check"]), (report["digest_after"], NO_DIGEST))

    def assert_same_bits(self, one, other):
        """All logical tensors of two dumps: parameters and both moments."""
        for dump in (one, other):
            self.assertEqual(dump.problems, [], dump.directory)
        self.assertEqual(one.tensors.keys(), other.tensors.keys())
        for name, logical in one.tensors.items():
            np.testing.assert_array_equal(logical.bits, other.tensors[name].bits, f"{name} in {one.directory}")


class PreparingIsInert(FieldCase):
    """C15: switches before any update and after step 5, to ranks that were idle; weight decay is on."""

    # The embedding is not tied: then only dp decides the order of sums, it stays, and so must every bit. Each layout
    # brings ranks that held nothing before.
    MODEL = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 256, "max_position_embeddings": 64,
             "tie_word_embeddings": False}
    FIRST = "dp=2,ranks=1+3"
    AT_0 = "pp=2,dp=2,zero=1,ranks=4+0+2+5"
    AT_5 = "dp=2,zero=1,ranks=6+1"

    def setUp(self):
        super().setUp()
        self.model = str(self.path / "config.json")
        pathlib.Path(self.model).write_text(json.dumps(self.MODEL))

    def dump(self, name, switch, when):
        return compare_state.Dump(self.path / name / f"switch-{switch}-{when}")

    def test_switches_at_step_0_and_5_change_nothing(self):
        switched = self.job("--layout", self.FIRST, "--nproc", "7", "--dump-state", str(self.path / "switched"),
                            "--switch", f"0:{self.AT_0}", "--switch", f"5:{self.AT_5}", "--switch", "6:dp=1")
        # Never switched before the same state is dumped: at the start, after steps 5 and 6.
        still = {}
        for step in (0, 1, 5, 6):
            still[step] = self.job("--layout", "dp=2", "--dump-state", str(self.path / f"still-{step}"),
                                   "--switch", f"{step}:dp=1")
        after_0 = self.job("--layout", self.FIRST, "--nproc", "7", "--dump-state", str(self.path / "after-0"),
                           "--switch", f"0:{self.AT_0}", "--switch", "1:dp=1")
        self.assert_switched(switched, (0, self.AT_0), (5, self.AT_5), (6, "dp=1"))
        self.assert_switched(after_0, (0, self.AT_0), (1, "dp=1"))

        for switch, step in ((1, 0), (2, 5), (3, 6)):
            before, after = (self.dump("switched", switch, when) for when in ("before", "after"))
            self.assertEqual((before.step, after.step), (step, step), "the step counter does not move")
            self.assert_same_bits(before, after)
            self.assert_same_bits(before, self.dump(f"still-{step}", 1, "before"))
        # The first update after the switch at 0, on its own.
        self.assert_same_bits(self.dump("after-0", 2, "before"), self.dump("still-1", 1, "before"))
        start = self.dump("switched", 1, "after").tensors
        for name, logical in start.items():
            if not name.startswith("param/"):
                self.assertFalse(logical.bits.any(), f"{name} is not zero before the first update")
        first = self.dump("still-1", 1, "before").tensors
        for name, logical in first.items():
            self.assertTrue((logical.bits != start[name].bits).any(), f"the first update left {name} as it was")

        for field in ("lr", "loss", "grad_norm"):
            to_6 = [{step: told for step, told in series(lines, field).items() if step <= 6}
                    for lines in (switched, still[6])]
            self.assertEqual(*to_6, field)
        # The schedule goes on as if nothing had happened, in every layout.
        self.assertEqual(series(switched, "lr"), series(still[0], "lr"))


class SamplesAreNeitherRepeatedNorSkipped(FieldCase):
    """C20: 24 samples, global batch 4, DP4 to DP2 after 2 steps, to DP4 after 2 more."""

    def read(self, *arguments):
        data = text_file(self.path, 24 * SEQ + 1)
        return self.job(*arguments, "--report-samples", steps=6, data=data)

    def by_step(self, lines):
        """{step: [ids of dp position 0, of position 1, ...]} by what the ranks tell they read."""
        told = {}
        for event in events(lines, "samples"):
            told.setdefault(event["step"], {})[event["rank"]] = event["ids"]
        layouts = series(lines, "layout")
        ordered = {}
        for step, ids_of in told.items():
            spec = dict(item.split("=") for item in layouts[step].split(","))
            ranks = [r for first, _, last in (p.partition("-") for p in spec["ranks"].split("+"))
                     for r in range(int(first), int(last or first) + 1)] if "ranks" in spec else range(int(spec["dp"]))
            self.assertEqual(sorted(ids_of), sorted(ranks), f"step {step}: the ranks that train are those that read")
            ordered[step] = [ids_of[rank] for rank in ranks]
        return ordered

    def test_grow_and_shrink(self):
        static = self.by_step(self.read("--layout", "dp=1"))
        elastic = self.read("--layout", "dp=4", "--nproc", "5", "--switch", "2:dp=2,ranks=4+1", "--switch", "4:dp=4")
        self.assert_switched(elastic, (2, "dp=2,ranks=4+1"), (4, "dp=4"))
        told = self.by_step(elastic)
        self.assertEqual(list(told), [1, 2, 3, 4, 5, 6])
        self.assertEqual({step: len(parts) for step, parts in told.items()}, {1: 4, 2: 4, 3: 2, 4: 2, 5: 4, 6: 4})
        in_order = [i for step in sorted(told) for part in told[step] for i in part]
        self.assertEqual(sorted(in_order), list(range(24)), "each id exactly once")
        self.assertNotEqual(in_order, list(range(24)), "shuffled")
        self.assertEqual(in_order, [i for step in sorted(static) for part in static[step] for i in part],
                         "the same global order as without a switch")


class GlobalBatchNeverChanges(FieldCase):
    """C21: global batch 12 in micro-batches of 2 over DP 2, 3 and 6, and not over 4 or 5; world is not DP with TP2."""

    BATCH = ["--micro-batch", "2"]

    def test_the_degrees_that_fit(self):
        for tp in (1, 2):
            with self.subTest(tp=tp):
                spec = {dp: (f"tp=2,dp={dp}" if tp == 2 else f"dp={dp}") for dp in (2, 3, 6)}
                dps = (2, 3, 6) if tp == 1 else (2, 3)
                switches = [x for step, dp in enumerate(dps[1:], 1) for x in ("--switch", f"{2 * step}:{spec[dp]}")]
                lines = self.job(*self.BATCH, "--layout", spec[dps[0]], "--report-samples", *switches,
                                 global_batch=12, steps=2 * len(dps))
                self.assert_switched(lines, *[(2 * step, spec[dp]) for step, dp in enumerate(dps[1:], 1)])
                self.assertEqual(set(series(lines, "tokens").values()), {12 * SEQ})
                micro_batches = {}
                for event in events(lines, "samples"):
                    micro_batches.setdefault(event["step"], set()).add(len(event["ids"]) / 2)
                expected = {2: 3, 3: 2, 6: 1}
                self.assertEqual(micro_batches,
                                 {step: {expected[dps[(step - 1) // 2]]} for step in range(1, 2 * len(dps) + 1)})

    def test_the_degrees_that_do_not(self):
        for tp in ("", "tp=2,"):
            for dp, each in ((4, "1.5"), (5, "1.2")):
                numbers = (f"dp={dp}", "global batch 12", "micro-batches of 2", "6 micro-batches", each, "1, 2, 3, 6")
                common = ["train", "--model", "micro-llama", "--data", self.data, "--steps", "3", "--nproc", "10",
                          "--global-batch", "12", "--micro-batch", "2"]
                self.refuse([*common, "--layout", f"{tp}dp={dp}"], *numbers)
                self.refuse([*common, "--layout", f"{tp}dp=2", "--switch", f"1:{tp}dp={dp}"], *numbers)
        # Another micro-batch is accepted when it is asked for.
        self.job("--micro-batch", "1", "--layout", "dp=4", global_batch=12, steps=1)


class ANewcomerIsNeverTheSource(FieldCase):
    """C30: DP2 on ranks 1 and 3 to DP4 on ranks 0 to 3 after step 17; ranks 0 and 2 are fresh, their memory NaN."""

    def test_the_lowest_rank_is_new(self):
        lines = self.job("--layout", "dp=2,ranks=1+3", "--nproc", "4", "--dump-state", str(self.path / "dump"),
                         "--switch", "17:dp=4", steps=20)
        self.assert_switched(lines, (17, "dp=4"))
        before, after = (compare_state.Dump(self.path / "dump" / f"switch-1-{when}") for when in ("before", "after"))
        self.assertEqual((sorted(before.placement), sorted(after.placement)), ([1, 3], [0, 1, 2, 3]))
        self.assertEqual((before.step, after.step), (17, 17))
        self.assert_same_bits(before, after)
        for name, logical in after.tensors.items():
            self.assertEqual(logical.holders_of(0), [0, 1, 2, 3], name)
            self.assertTrue(np.isfinite(logical.bits.view(np.float32)).all(), name)
        self.assertEqual(list(series(lines, "loss")), list(range(1, 21)), "no step is repeated or skipped")
        static = self.job("--layout", "dp=2", steps=20)
        for step, loss in series(static, "loss").items():
            self.assertAlmostEqual(series(lines, "loss")[step], loss, delta=2e-5 * loss, msg=f"step {step}")
        self.assertEqual([series(lines, "loss")[s] for s in range(1, 18)], [series(static, "loss")[s] for s in range(1, 18)])


if __name__ == "__main__":
    main()
