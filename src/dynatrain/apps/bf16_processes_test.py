#!/usr/bin/env python3
"""Jobs of real processes with bf16 parameters and fp32 masters: case C16, loss, checkpoints."""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "scripts"))
import compare_state
import state_geometry as geometry
from cli_test_support import NO_DIGEST, Cli, events, main

BF16 = ["--dtype", "bf16", "--verify", "full"]
LAYOUTS = ["dp=4,zero=1", "dp=2,zero=1", "tp=2,dp=2,zero=1", "tp=2,dp=1", "tp=1,dp=1", "pp=3,dp=1"]
MICRO_LLAMA = dict(num_hidden_layers=3, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                   intermediate_size=48, vocab_size=256, tie_word_embeddings=True)


def losses(lines):
    return {e["step"]: e["loss"] for e in events(lines, "step")}


def no_bf16_number(elems):
    """1.0 + i * 2^-20, as raw bits: bf16 has 7 bits after the point."""
    return (np.float32(1.0) + np.arange(elems, dtype=np.float32) * np.float32(2.0**-20)).view(np.uint32)


def hugging_face_tensors():
    """Weights of the micro model by transformers' names, so that each of our tensors holds the numbers of C16 in its order."""
    ours = {p.name: no_bf16_number(p.elems).view(np.float32).reshape(p.shape) for p in geometry.llama_parameters(MICRO_LLAMA)}
    hidden = MICRO_LLAMA["hidden_size"]
    theirs = {"model.embed_tokens.weight": ours["embedding.weight"], "model.norm.weight": ours["final_norm.weight"]}
    for n in range(MICRO_LLAMA["num_hidden_layers"]):
        a, b = f"layers.{n}.", f"model.layers.{n}."
        qkv, gate_up = ours[a + "attn.qkv.weight"], ours[a + "mlp.gate_up.weight"]
        queries = qkv.shape[1] - 2
        for name, part in (("q", qkv[:, :queries]), ("k", qkv[:, queries]), ("v", qkv[:, queries + 1])):
            theirs[f"{b}self_attn.{name}_proj.weight"] = part.reshape(-1, hidden)
        theirs[b + "self_attn.o_proj.weight"] = ours[a + "attn.out.weight"].reshape(hidden, -1)
        theirs[b + "mlp.gate_proj.weight"], theirs[b + "mlp.up_proj.weight"] = gate_up
        theirs[b + "mlp.down_proj.weight"] = ours[a + "mlp.down.weight"]
        theirs[b + "input_layernorm.weight"] = ours[a + "input_norm.weight"]
        theirs[b + "post_attention_layernorm.weight"] = ours[a + "post_norm.weight"]
    return theirs


def write_hugging_face(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**MICRO_LLAMA, "model_type": "llama", "max_position_embeddings": 64,
                                                    "rms_norm_eps": 1e-5, "hidden_act": "silu"}))
    header, data = {}, b""
    for name, values in hugging_face_tensors().items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
        data += np.ascontiguousarray(values).tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


class Bf16Jobs(Cli):
    def switches(self, first=3, every=4):
        return [flag for i, spec in enumerate(LAYOUTS[1:]) for flag in ("--switch", f"{first + every * i}:{spec}")]

    def assert_proven(self, lines):
        reports = events(lines, "switch")
        self.assertEqual([r["outcome"] for r in reports], ["committed"] * (len(LAYOUTS) - 1), reports)
        for report in reports:
            self.assertEqual(report["digest_before"], report["digest_after"], report)
            self.assertEqual(report["replica_check"], NO_DIGEST, report)
        return reports

    def test_c16_masters_keep_every_bit_and_parameters_are_their_roundings(self):
        folder, store = self.path / "model", self.path / "checkpoints"
        write_hugging_face(folder)
        code, _, err = self.run_cli("import", str(folder), "-o", str(store), "--dtype", "bf16")
        self.assertEqual(code, 0, err)
        moved = {}
        for derive in ([], ["--derive"]):
            dump, path = self.path / f"dump{len(derive)}", self.path / f"lines{len(derive)}.jsonl"
            code, _, err = self.run_cli("train", "--model", str(folder), "--data", self.data, "--global-batch", "4", "--seq", "32", *BF16,
                                        *derive, "--layout", LAYOUTS[0], "--steps", "12", "--lr", "0", "--resume", str(store),
                                        "--exact-switches", "--dump-state", str(dump), f"--json={path}", *self.switches(1, 2))
            self.assertEqual(code, 0, err)
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            moved[len(derive)] = [r["moved_bytes"] for r in self.assert_proven(lines)]
            for switch in range(1, len(LAYOUTS)):
                # Equal bits before and after, replicas alike, each parameter its master rounded: from the raw buffers.
                comparison = compare_state.compare_switch(dump, switch)
                self.assertEqual(comparison.problems, [])
                after = compare_state.Dump(dump / f"switch-{switch}-after")
                for name, tensor in after.tensors.items():
                    if name.startswith("master/"):
                        self.assertTrue(np.array_equal(tensor.bits, no_bf16_number(len(tensor.bits))), name)
        for with_derive, without in zip(moved[1], moved[0]):
            self.assertLessEqual(with_derive, without)
        self.assertLess(sum(moved[1]), sum(moved[0]))

    def test_what_must_move_moves(self):
        lines = self.train(*BF16, "--layout", LAYOUTS[0], "--steps", "24", "--exact-switches", *self.switches())
        parameters = geometry.llama_parameters(MICRO_LLAMA)
        layouts = [geometry.parse_layout(spec) for spec in LAYOUTS]
        least = [geometry.transition(parameters, a, b, "bf16").moved_bytes for a, b in zip(layouts, layouts[1:])]
        self.assertEqual([r["moved_bytes"] for r in self.assert_proven(lines)], least)

    def test_loss_follows_a_static_run_through_switches_and_a_resume(self):
        static = losses(self.train(*BF16, "--layout", "dp=1", "--steps", "80"))
        elastic = losses(self.train(*BF16, "--derive", "--layout", LAYOUTS[0], "--steps", "80", "--exact-switches",
                                    *self.switches(3, 15)))
        store = str(self.path / "checkpoints")
        first = losses(self.train(*BF16, "--layout", "tp=2,dp=2,zero=1", "--steps", "80", "--stop-after", "40", "--save", store))
        second = losses(self.train(*BF16, "--layout", "pp=3,dp=2,zero=1", "--steps", "80", "--resume", store))
        fp32 = losses(self.train("--layout", "dp=1", "--steps", "80"))
        self.assertLess(static[80], 0.8 * static[1])
        for other in (elastic, {**first, **second}):
            self.assertEqual(static.keys(), other.keys())
            for step, loss in static.items():
                self.assertAlmostEqual(other[step], loss, delta=0.02 * loss, msg=f"step {step}")
        self.assertAlmostEqual(fp32[80], static[80], delta=0.02 * fp32[80])

    def test_a_checkpoint_of_another_dtype_is_refused(self):
        store = str(self.path / "checkpoints")
        self.train("--layout", "dp=1", "--steps", "4", "--stop-after", "1", "--save", store)
        self.refuse(["train", "--model", "micro-llama", "--global-batch", "4", "--seq", "32", "--data", self.data, "--steps", "4",
                     "--layout", "dp=1", "--dtype", "bf16", "--resume", store], "--resume", "fp32", "bf16")


if __name__ == "__main__":
    main()
