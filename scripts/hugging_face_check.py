#!/usr/bin/env python3
"""Checks import and export against transformers itself: hugging_face_check.py DYNATRAIN

    pip install -r requirements-golden.txt          (transformers is not among what tests need)

Makes a small random LLaMA model with transformers, imports it, trains it in one layout, goes on in another, exports it, and
compares with transformers on the exported folder: the loss of the fixed batch of --probe-loss (to 1e-6, relative), and, for the
model as it was imported, every tensor and so every logit (bit for bit). Trains the same steps with transformers' model and
torch's AdamW from the imported weights, and compares the logits of both trained models (to 1e-5 of the largest one).
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SEQ, BATCH, STEPS, VOCAB, LR = 24, 4, 6, 97, 1e-3
SHAPE = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=70, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=3, head_dim=8, max_position_embeddings=64)
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_tokens(path, count):
    rng = np.random.default_rng(3)
    tokens = (np.cumsum(rng.integers(0, 5, count)) % VOCAB).astype(np.uint16)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, count
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return torch.from_numpy(tokens.astype(np.int64))


def samples(tokens, ids):
    return torch.stack([tokens[i * SEQ:i * SEQ + SEQ + 1] for i in ids])


def loss_of(model, batch):
    logits = model(input_ids=batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()), logits


def rate(step):
    """min_lr is a tenth; no warm-up in so few steps."""
    return LR / 10 + (LR - LR / 10) * 0.5 * (1 + np.cos(np.pi * step / STEPS))


def train_reference(model, tokens, ids_by_step):
    named = dict(model.named_parameters())
    groups = [{"params": [p for n, p in named.items() if n.endswith("norm.weight") == plain], "weight_decay": 0.0 if plain else DECAY}
              for plain in (False, True)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False)
    losses = []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        loss, _ = loss_of(model, samples(tokens, ids_by_step[step]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(named.values()), CLIP)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main():
    program = sys.argv[1]
    torch.set_num_threads(1)
    torch.manual_seed(5)
    failed = []

    def check(what, value, limit):
        print(f"{what}: {value:.2e} (at most {limit:.0e})")
        if not value <= limit:
            failed.append(what)

    with tempfile.TemporaryDirectory(prefix="dynatrain-hf-") as scratch:
        folder = pathlib.Path(scratch)
        original = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="eager")).float()
        original.save_pretrained(folder / "hf", max_shard_size="60KB")
        tokens = write_tokens(folder / "tokens.bin", 3000)
        run(program, "import", folder / "hf", "-o", folder / "start")
        run(program, "export", folder / "start", "-o", folder / "same")
        again = AutoModelForCausalLM.from_pretrained(folder / "same", attn_implementation="eager").float()
        fixed = samples(tokens, range(BATCH))
        with torch.no_grad():
            difference = (loss_of(again, fixed)[1] - loss_of(original, fixed)[1]).abs().max()
        check("logits of the model imported and exported, against the original", float(difference), 0)

        common = ["train", "--model", folder / "hf", "--data", folder / "tokens.bin", "--steps", STEPS, "--seq", SEQ, "--lr", LR,
                  "--global-batch", BATCH, "--verify", "full"]
        lines = folder / "lines.jsonl"
        run(program, *common, "--layout", "tp=2,pp=2,dp=1", "--stop-after", STEPS // 2, "--resume", folder / "start", "--save",
            folder / "middle", "--report-samples", f"--json={lines}")
        run(program, *common, "--layout", "tp=3,dp=2,zero=1", "--resume", folder / "middle", "--save", folder / "end",
            "--report-samples", f"--json={folder / 'more.jsonl'}")
        events = [json.loads(line) for path in (lines, folder / "more.jsonl") for line in path.read_text().splitlines()]
        ids, ours = {}, {}
        for event in events:
            if event["event"] == "step":
                ours[event["step"]] = event["loss"]
            if event["event"] == "samples":
                ids.setdefault(event["step"], set()).update(event["ids"])
        reference_losses = train_reference(original, tokens, ids)
        check("losses of the steps, against torch's AdamW on transformers' model",
              max(abs(ours[s + 1] / reference_losses[s] - 1) for s in range(STEPS)), 1e-5)

        run(program, "export", folder / "end", "-o", folder / "trained")
        trained = AutoModelForCausalLM.from_pretrained(folder / "trained", attn_implementation="eager").float()
        with torch.no_grad():
            loss, logits = loss_of(trained, fixed)
            _, expected = loss_of(original, fixed)
        check("logits of the model trained here and exported, against the one trained there",
              float((logits - expected).abs().max() / expected.abs().max()), 1e-5)

        # Our own loss of the same weights on the same batch: a run that goes on and probes before its first step.
        more = [*common, "--resume", folder / "end", "--layout", "dp=2", "--probe-loss", "--exact-switches", "--switch",
                f"{STEPS}:dp=1", f"--json={folder / 'probe.jsonl'}"]
        more[more.index("--steps") + 1] = STEPS + 1
        run(program, *more)
        probes = [json.loads(line) for line in (folder / "probe.jsonl").read_text().splitlines() if '"probe"' in line]
        check("loss of the exported model in transformers, against ours",
              max(abs(p["loss"] / float(loss) - 1) for p in probes), 1e-6)
    if failed:
        sys.exit("FAILED: " + "; ".join(failed))


if __name__ == "__main__":
    main()
