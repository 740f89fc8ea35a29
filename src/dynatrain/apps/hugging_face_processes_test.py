#!/usr/bin/env python3
"""import -> train -> export through the command line, on a folder that transformers wrote; and token files."""

import json
import pathlib
import struct
import subprocess
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cli_test_support import MICRO, Cli, events, main

# Runs a command and prints its peak in KiB. A process of its own, and a small one: what is started from a large one counts the
# memory of that as its own peak.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
TESTDATA = pathlib.Path(__file__).parents[1] / "trainer" / "testdata"


def read_folder(folder):
    """{name: (dtype, shape, raw bytes)} of all safetensors files of a folder."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:8 + length])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + length + at for at in entry["data_offsets"])
            tensors[name] = (entry["dtype"], entry["shape"], raw[begin:end])
    return tensors


def floats(tensor):
    return np.frombuffer(tensor[2], np.float32)


def write_folder(folder, layers, hidden, ffn, vocab=61):
    """An untied LLaMA of random fp32 weights with two heads; the bytes of its largest tensor and of all."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": 2, "num_key_value_heads": 2,
         "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": 64, "tie_word_embeddings": False}))
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden], "lm_head.weight": [vocab, hidden]}
    for layer in range(layers):
        of_layer = {"self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [hidden, hidden], "self_attn.v_proj": [hidden, hidden],
                    "self_attn.o_proj": [hidden, hidden], "input_layernorm": [hidden], "post_attention_layernorm": [hidden],
                    "mlp.gate_proj": [ffn, hidden], "mlp.up_proj": [ffn, hidden], "mlp.down_proj": [hidden, ffn]}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    rng = np.random.default_rng(2)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write(rng.standard_normal(shape, np.float32).tobytes())
    return max(4 * int(np.prod(shape)) for shape in shapes.values()), end


def write_llmc(path, tokens):
    header = [20240520, 1, len(tokens)] + [0] * 253
    pathlib.Path(path).write_bytes(struct.pack("<256i", *header) + np.asarray(tokens, np.uint16).tobytes())


def write_megatron(path, tokens):
    """PATH.bin and PATH.idx with two sequences."""
    lengths = [len(tokens) // 3, len(tokens) - len(tokens) // 3]
    path.with_suffix(".bin").write_bytes(np.asarray(tokens, np.uint16).tobytes())
    path.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<2i", *lengths) +
                                         struct.pack("<2q", 0, 2 * lengths[0]) + struct.pack("<3q", 0, 1, 2))


class HuggingFace(Cli):
    def setUp(self):
        super().setUp()
        self.source = TESTDATA / "hugging_face_untied"
        self.tokens = self.path / "tokens.bin"
        rng = np.random.default_rng(1)
        write_llmc(self.tokens, np.cumsum(rng.integers(0, 4, 4000)) % 61)
        self.common = ["--model", str(self.source), "--data", str(self.tokens), "--seq", "16", "--global-batch", "4", "--steps", "8"]

    def run_ok(self, *arguments):
        code, out, err = self.run_cli(*map(str, arguments))
        self.assertEqual(code, 0, f"{arguments}\n{out}\n{err}")
        return out

    def train_from(self, store, to, layout, *arguments):
        lines = self.path / f"{to.name}.jsonl"
        self.run_ok("train", *self.common, "--layout", layout, "--resume", store, "--save", to, f"--json={lines}", *arguments)
        return {e["step"]: e["loss"] for e in events([json.loads(l) for l in lines.read_text().splitlines()], "step")}

    def test_import_train_export(self):
        start = self.path / "start"
        self.run_ok("import", self.source, "-o", start)
        self.run_ok("export", start, "-o", self.path / "same")
        original = read_folder(self.source)
        self.assertEqual(read_folder(self.path / "same"), original)

        one = self.train_from(start, self.path / "one", "dp=1")
        other = self.train_from(start, self.path / "other", "tp=2,pp=3,dp=1")
        self.assertEqual(list(one), list(range(1, 9)))
        for step, loss in one.items():
            self.assertAlmostEqual(other[step], loss, delta=1e-5 * loss)
        for name in ("one", "other"):
            self.run_ok("export", self.path / name, "-o", self.path / f"hf-{name}")
        trained, again = read_folder(self.path / "hf-one"), read_folder(self.path / "hf-other")
        self.assertEqual(trained.keys(), original.keys())
        for name, tensor in trained.items():
            self.assertEqual(tensor[:2], original[name][:2], name)
            self.assertNotEqual(tensor[2], original[name][2], name)
            np.testing.assert_allclose(floats(tensor), floats(again[name]), atol=1e-4, err_msg=name)
        # What was exported is imported to the very same state.
        self.run_ok("import", self.path / "hf-one", "-o", self.path / "back")
        self.run_ok("export", self.path / "back", "-o", self.path / "hf-back")
        self.assertEqual(read_folder(self.path / "hf-back"), trained)

    def test_bf16(self):
        start = self.path / "start"
        self.run_ok("import", self.source, "-o", start, "--dtype", "bf16")
        self.run_ok("export", start, "-o", self.path / "masters", "--dtype", "fp32")
        self.assertEqual(read_folder(self.path / "masters"), read_folder(self.source))
        self.run_ok("export", start, "-o", self.path / "half")
        for name, tensor in read_folder(self.path / "half").items():
            self.assertEqual(tensor[0], "BF16")
            wide = np.frombuffer(tensor[2], np.uint16).astype(np.uint32) << 16
            original = floats(read_folder(self.source)[name])
            self.assertTrue((np.abs(wide.view(np.float32) - original) <= np.abs(original) * 2.0**-8).all(), name)
        losses = self.train_from(start, self.path / "end", "tp=2,dp=2,zero=1", "--dtype", "bf16")
        self.run_ok("import", self.source, "-o", self.path / "wide")
        for step, loss in self.train_from(self.path / "wide", self.path / "wide-end", "dp=1").items():
            self.assertAlmostEqual(losses[step], loss, delta=0.01 * loss)
        self.refuse(["train", *self.common, "--layout", "dp=1", "--resume", str(start)], "bf16", "fp32")

    def peak_bytes(self, *arguments):
        """The largest resident memory of a command that must succeed, pages of files included."""
        measured = subprocess.run([sys.executable, "-c", MEASURE, self.program, *map(str, arguments)], capture_output=True, text=True,
                                  timeout=120)
        self.assertEqual(measured.returncode, 0, measured.stderr)
        return 1024 * int(measured.stdout)

    def test_import_and_export_hold_about_a_tensor_at_a_time(self):
        source = self.path / "large"
        tensor, weights = write_folder(source, layers=6, hidden=512, ffn=2048)
        for dtype, state in (("fp32", 3 * weights), ("bf16", 3.5 * weights)):
            with self.subTest(dtype=dtype):
                base = self.peak_bytes("import", self.source, "-o", self.path / f"small-{dtype}", "--dtype", dtype)
                read = self.peak_bytes("import", source, "-o", self.path / f"start-{dtype}", "--dtype", dtype) - base
                back = self.path / f"back-{dtype}"
                written = self.peak_bytes("export", self.path / f"start-{dtype}", "-o", back, "--dtype", "fp32") - base
                print(f"{dtype}: state {state / 1e6:.0f} MB, largest tensor {tensor / 1e6:.1f} MB, more than for a small model: "
                      f"import {read / 1e6:.1f} MB, export {written / 1e6:.1f} MB")
                self.assertLess(max(read, written), 8 * tensor)
                self.assertGreater(state, 5 * 8 * tensor)
                found, expected = read_folder(back), read_folder(source)
                self.assertEqual(found.keys(), expected.keys())
                for name, values in expected.items():
                    self.assertTrue(found[name] == values, f"{name} is not what it was")

    def test_what_does_not_fit_is_refused(self):
        self.refuse(["import", str(self.path), "-o", str(self.path / "x")], str(self.path))
        self.refuse(["import", str(self.source), "-o", str(self.path / "x"), "--dtype", "fp8"], "--dtype fp8")
        self.refuse(["export", str(self.path / "none"), "-o", str(self.path / "x")], str(self.path / "none"))
        self.run_ok("import", self.source, "-o", self.path / "start")
        self.refuse(["export", str(self.path / "start"), "-o", str(self.path / "x"), "--model", "micro-llama"], "another model")


class TokenFiles(Cli):
    def test_the_same_tokens_in_every_kind_of_file_train_alike(self):
        text = pathlib.Path(self.data).read_bytes()
        write_llmc(self.path / "llmc.bin", list(text))
        write_megatron(self.path / "pair", list(text))
        found = []
        for data in (self.data, self.path / "llmc.bin", self.path / "pair.bin", self.path / "pair.idx"):
            lines = self.path / "lines.jsonl"
            code, _, err = self.run_cli("train", *MICRO, "--data", str(data), "--layout", "dp=2", "--steps", "3", f"--json={lines}")
            self.assertEqual(code, 0, err)
            found.append([e["loss"] for e in events([json.loads(l) for l in lines.read_text().splitlines()], "step")])
        self.assertEqual(found, [found[0]] * 4)

    def test_tokens_outside_the_vocabulary_and_broken_files_are_refused(self):
        data = self.path / "big.bin"
        write_llmc(data, [1, 2, 300] * 2000)
        arguments = ["train", *MICRO, "--layout", "dp=1", "--steps", "3", "--data"]
        self.refuse([*arguments, str(data)], "token 300", "position 2", "256")
        data.write_bytes(data.read_bytes()[:-2])
        self.refuse([*arguments, str(data)], "6000 tokens", str(data))
        bare = self.path / "bare.bin"
        bare.write_bytes(b"x" * 9000)
        self.refuse([*arguments, str(bare)], "neither", "bare.idx")


if __name__ == "__main__":
    main()
