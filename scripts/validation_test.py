#!/usr/bin/env python3
"""Tests of the validation scripts: the geometry covers every element, and the comparison finds what is wrong.

    validation_test.py              on made-up state
    validation_test.py DYNATRAIN    and on dumps of a job that goes through unusual layouts
"""

import contextlib
import io
import json
import random
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import compare_state
import dynatrain_runs as runs
import state_geometry as geometry

MICRO_LLAMA = dict(num_hidden_layers=3, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                   intermediate_size=48, vocab_size=256, tie_word_embeddings=True)
# Tied embeddings on one and on two stages, uneven cuts, every buffer rule, every axis order, ranks out of order.
UNUSUAL_LAYOUTS = [
    "pp=3,dp=1",
    "tp=2,pp=2,dp=2,zero=1,zero_order=reverse-bucketed",
    "dp=4,zero=1,zero_order=forward-contiguous-start:64-end:128",
    "tp=2,dp=2,zero=1,zero_order=reverse-bucketed:5000-start:16-end:8-endx:2,ranks=7+0+5+2",
    "pp=2,dp=4,zero=1,split=1+2,order=dp-pp-tp",
    "tp=2,pp=3,dp=1,zero=1,zero_order=forward-bucketed:1-endx:1000,ranks=5+4+3+2+1+0",
    "tp=2,pp=2,dp=2,order=pp-tp-dp,zero_order=reverse-contiguous",
    "dp=1,ranks=6",
]


def write_safetensors(path, tensors):
    """fp32 values, and bf16 ones as 16-bit words."""
    header, end = {}, 0
    for name, values in tensors.items():
        dtype = "F32" if values.dtype == np.float32 else "BF16"
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for v in tensors.values()))


def write_dump(directory, spec, state, dtype="fp32"):
    """What a job in layout `spec` with this logical state, as fp32 values, would dump."""
    directory.mkdir(parents=True)
    about = {"spec": spec, "step": 7, "model": MICRO_LLAMA, "num_ranks": 8, "dtype": dtype}
    (directory / "layout.json").write_text(json.dumps(about))
    parameters = geometry.llama_parameters(MICRO_LLAMA)
    for rank, buffers in geometry.place(parameters, geometry.parse_layout(spec), geometry.KINDS_OF[dtype]).items():
        tensors = {}
        for buffer in buffers:
            values = np.zeros(buffer.elems, np.float32)
            for run in buffer.runs:
                values[run.offset:run.offset + run.count] = state[run.tensor][run.logical:run.logical + run.count]
            if geometry.elem_bytes(buffer.kind, dtype) == 2:
                values = (values.view(np.uint32) >> 16).astype(np.uint16)
            tensors[f"{buffer.kind}/{buffer.bucket}-{buffer.index}[0/1]"] = values
        write_safetensors(directory / f"rank-{rank}.safetensors", tensors)


class Geometry(unittest.TestCase):
    def setUp(self):
        self.parameters = geometry.llama_parameters(MICRO_LLAMA)

    def test_every_layout_holds_every_element(self):
        for spec in UNUSUAL_LAYOUTS:
            with self.subTest(spec=spec):
                state = geometry.place(self.parameters, geometry.parse_layout(spec))
                held = geometry.intervals_by_tensor([b for buffers in state.values() for b in buffers])
                whole = {f"{k}/{p.name}": [(0, p.elems)] for k in geometry.KINDS for p in self.parameters}
                self.assertEqual(held, whole)

    def test_runs_of_a_buffer_do_not_overlap(self):
        for spec in UNUSUAL_LAYOUTS:
            for buffers in geometry.place(self.parameters, geometry.parse_layout(spec)).values():
                for buffer in buffers:
                    end = 0
                    for run in sorted(buffer.runs, key=lambda r: r.offset):
                        self.assertGreaterEqual(run.offset, end, spec)
                        end = run.offset + run.count
                    self.assertLessEqual(end, buffer.elems, spec)

    def test_alignment_of_the_end_counts_dp(self):  # 57 elements, 2 per dp position: 60, 60, 64
        parameter = geometry.Parameter("x", (57,), None, (("layer", 0),))
        for dp, elems in ((2, 60), (3, 60), (4, 64)):
            layout = geometry.parse_layout(f"dp={dp},zero=1,zero_order=forward-bucketed-endx:2")
            buffers = geometry.place([parameter], layout)[0]
            self.assertEqual([b.elems for b in buffers], [elems, elems // dp, elems // dp])

    def test_uneven_cuts(self):
        self.assertEqual([geometry.balanced(7, 3, i) for i in range(3)], [(0, 3), (3, 5), (5, 7)])
        self.assertEqual(list(geometry.parse_layout("pp=2,split=4+3").layers_of(1, 7)), [4, 5, 6])

    def test_what_must_move(self):
        old, new = geometry.parse_layout("dp=1"), geometry.parse_layout("dp=2")
        total = sum(p.elems for p in self.parameters) * len(geometry.KINDS) * geometry.ELEM_BYTES
        self.assertEqual(geometry.transition(self.parameters, old, old), geometry.Transition(0, total, total))
        self.assertEqual(geometry.transition(self.parameters, old, new), geometry.Transition(total, total, 2 * total))


class Comparison(unittest.TestCase):
    def setUp(self):
        self.seed = random.randrange(2**32)
        rng = np.random.default_rng(self.seed)
        parameters = geometry.llama_parameters(MICRO_LLAMA)
        self.state = {f"{kind}/{p.name}": rng.standard_normal(p.elems, np.float32)
                      for kind in geometry.KINDS for p in parameters}
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name) / "dump"
        for switch, (old, new) in enumerate(zip(UNUSUAL_LAYOUTS, UNUSUAL_LAYOUTS[1:]), 1):
            write_dump(self.root / f"switch-{switch}-before", old, self.state)
            write_dump(self.root / f"switch-{switch}-after", new, self.state)

    def test_equal_state_passes(self):
        for switch in compare_state.switches_in(self.root):
            comparison = compare_state.compare_switch(self.root, switch)
            self.assertEqual(comparison.problems, [], f"seed {self.seed}")
            self.assertEqual(comparison.elems, sum(len(v) for v in self.state.values()))

    def test_planted_faults_are_found(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            found = compare_state.self_test(self.root, self.seed)
        self.assertEqual(list(found.values()), [True] * 3, said.getvalue())

    def test_planted_faults_are_found_in_bf16(self):
        rng = np.random.default_rng(self.seed)
        kinds = geometry.KINDS_OF["bf16"]
        state = {f"{kind}/{p.name}": rng.standard_normal(p.elems, np.float32)
                 for kind in kinds if kind != "param" for p in geometry.llama_parameters(MICRO_LLAMA)}
        state |= {name.replace("master/", "param/"): compare_state.round_to_bf16(values.view(np.uint32)).view(np.float32)
                  for name, values in state.items() if name.startswith("master/")}
        root = self.root.parent / "bf16"
        for when, spec in (("before", "dp=1"), ("after", "tp=2,dp=2,zero=1")):
            write_dump(root / f"switch-1-{when}", spec, state, "bf16")
        self.assertEqual(compare_state.compare_switch(root, 1).problems, [], f"seed {self.seed}")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            found = compare_state.self_test(root, self.seed)
        self.assertEqual(list(found.values()), [True] * 3, said.getvalue())

    def test_a_fault_that_is_not_found_is_told(self):
        with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.object(
                compare_state, "flip_one_element", lambda dump, rng: "nothing done"):
            found = compare_state.self_test(self.root, self.seed)
        self.assertFalse(found["nothing done"])
        self.assertEqual(list(found.values()).count(True), 2)

    def test_a_dump_that_is_not_there_is_one_clear_message(self):
        script = Path(compare_state.__file__)
        for arguments, expected in ([["/nope"], "/nope is no directory"], [["/nope", "--self-test"], "/nope is no directory"],
                                    [[str(self.root), "--switch", "99"], "switch-99-before"],
                                    [[str(self.root.parent)], "no switch-<id>-before"]):
            done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(expected, done.stderr)

    def test_padding_that_is_not_zero_is_found(self):
        switch = UNUSUAL_LAYOUTS.index("dp=4,zero=1,zero_order=forward-contiguous-start:64-end:128")
        dump = compare_state.Dump(self.root / f"switch-{switch}-after")
        path = dump.rank_path(0)
        name, buffer = compare_state.bind(dump.placement[0], compare_state.read_safetensors(path), "test")[0]
        used = {i for run in buffer.runs for i in range(run.offset, run.offset + run.count)}
        free = next(i for i in range(buffer.elems) if i not in used)
        compare_state.patch(path, compare_state.data_offset(path, name) + geometry.ELEM_BYTES * free, b"\1\0\0\0")
        problems = compare_state.compare_switch(self.root, switch).problems
        self.assertTrue(any("padding" in problem for problem in problems), problems)

    def test_a_missing_rank_is_found(self):
        (self.root / "switch-1-after/rank-3.safetensors").unlink()
        with self.assertRaisesRegex(compare_state.StateError, "3"):
            compare_state.compare_switch(self.root, 1)


class Observed(unittest.TestCase):
    def test_only_what_the_command_line_did_not_ask_for_came_from_outside(self):
        events = {"requested": [{"id": 1}, {"id": 3}], "switch": [{"id": 3}, {"id": 1}, {"id": 2}]}
        self.assertEqual(runs.asked_from_outside(SimpleNamespace(of=events.get)), {2})

    def test_a_change_is_told_by_the_layout_it_led_to(self):
        self.assertEqual(runs.change_to("pp=3,dp=2,zero=1,split=3+3+1"), runs.CHANGES[1][0])
        self.assertEqual(runs.change_to("pp=3,dp=2"), "")


class Job(unittest.TestCase):
    program = None

    def test_dumps_of_unusual_layouts_compare_equal(self):
        parameters = geometry.llama_parameters(MICRO_LLAMA)
        with runs.scratch_directory("dynatrain-test-") as scratch:
            text = scratch / "text"
            text.write_text("All layouts of one state are one state. " * 400)
            arguments = ["--model", "micro-llama", "--data", str(text), "--seq", "32", "--global-batch", "4",
                         "--steps", str(7 * len(UNUSUAL_LAYOUTS) + 6), "--nproc", "8", "--verify", "full",
                         "--exact-switches", "--layout", UNUSUAL_LAYOUTS[-1], "--dump-state", str(scratch / "dump")]
            for index, spec in enumerate(UNUSUAL_LAYOUTS):
                arguments += ["--switch", f"{7 * index + 3}:{spec}"]
            job = runs.run_job(self.program, arguments, deadline_s=240)
            self.assertEqual(len(job.of("switch")), len(UNUSUAL_LAYOUTS))
            for switch in job.of("switch"):
                with self.subTest(old=switch["from"], new=switch["to"]):
                    minimum = runs.minimum_of(switch, parameters)
                    self.assertEqual(runs.switch_problems(switch, minimum), [])
                    self.assertEqual(compare_state.compare_switch(scratch / "dump", switch["id"]).problems, [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        Job.program = sys.argv.pop(1)
    else:
        del Job
    unittest.main()
