#!/usr/bin/env python3
"""Makes the trainer's reference values with transformers' LlamaForCausalLM and torch.optim.AdamW.

    pip install torch==2.13.0 transformers==4.57.1 safetensors numpy
    scripts/make_golden.py [FOLDER]      (default: src/dynatrain/trainer/testdata)

For each variant, golden_NAME.safetensors holds, in our names and logical shapes (models/catalog.h),
  weights/*  grads/*  clipped/*  step1/* step2/* step3/*   all float32
  logits [sequences, seq, vocab]; loss, grad_norm [1]
with the configuration as metadata, and golden_NAME.bytes the training text: sequences * seq + 1
bytes, of which sequence i is bytes [i * seq, i * seq + seq]. Every step trains on all of it.
hugging_face_NAME is the folder that transformers writes of the same weights.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

SEQUENCES, SEQ = 4, 16
LR, WEIGHT_DECAY, BETAS, STEPS = 3e-3, 0.1, (0.9, 0.95), 3
EPS = 1e-5  # above the rounding noise of gradients, which Adam would blow up to whole steps
SHAPE = dict(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=29,  # no part of it is even
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=3,  # two query heads each; 2 + 1 over tp=2
    head_dim=4,
    max_position_embeddings=SEQ,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    attention_bias=False,
    mlp_bias=False,
)
# Which steps' parameters a variant keeps.
VARIANTS = {"untied": (1, 2, 3), "tied": (3,)}


def ours(config, named):
    """Hugging Face tensors, by name, in our names and logical shapes."""
    heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    hidden, per = config.hidden_size, heads // kv
    out = {
        "embedding.weight": named["model.embed_tokens.weight"],
        "final_norm.weight": named["model.norm.weight"],
    }
    if not config.tie_word_embeddings:
        out["head.weight"] = named["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        theirs, mine = f"model.layers.{layer}.", f"layers.{layer}."
        q, k, v = (named[f"{theirs}self_attn.{x}_proj.weight"] for x in "qkv")
        out[mine + "attn.qkv.weight"] = torch.cat(
            [x.reshape(kv, -1, dim, hidden) for x in (q, k, v)], 1
        )
        output = named[theirs + "self_attn.o_proj.weight"]
        out[mine + "attn.out.weight"] = output.reshape(hidden, kv, per, dim)
        gate, up = (named[f"{theirs}mlp.{x}_proj.weight"] for x in ("gate", "up"))
        out[mine + "mlp.gate_up.weight"] = torch.stack([gate, up])
        out[mine + "mlp.down.weight"] = named[theirs + "mlp.down_proj.weight"]
        out[mine + "input_norm.weight"] = named[theirs + "input_layernorm.weight"]
        out[mine + "post_norm.weight"] = named[theirs + "post_attention_layernorm.weight"]
    return {name: tensor.detach().clone().contiguous() for name, tensor in out.items()}


def make_model(tied):
    config = LlamaConfig(**SHAPE, tie_word_embeddings=tied, attn_implementation="eager")
    torch.manual_seed(20)
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.1 * noise if name.endswith("norm.weight") else 0.2 * noise)
    return model


def make_variant(name, kept_steps, folder):
    model = make_model(name == "tied")
    config = model.config
    generator = torch.Generator().manual_seed(7)
    text = torch.randint(0, config.vocab_size, (SEQUENCES * SEQ + 1,), generator=generator)
    inputs, targets = text[:-1].view(SEQUENCES, SEQ), text[1:].view(SEQUENCES, SEQ)
    parameters = dict(model.named_parameters())
    decay = [p for n, p in parameters.items() if not n.endswith("norm.weight")]
    plain = [p for n, p in parameters.items() if n.endswith("norm.weight")]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=LR,
        betas=BETAS,
        eps=EPS,
        foreach=False,
    )

    def of(prefix, tensors):
        return {f"{prefix}/{key}": value for key, value in ours(config, tensors).items()}

    saved = of("weights", parameters)
    # Small shards in one of the two, so that it has an index.
    model.save_pretrained(folder / f"hugging_face_{name}", max_shard_size="25KB" if name == "untied" else "5GB")
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        logits = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        if step == 1:
            saved |= of("grads", {n: p.grad for n, p in parameters.items()})
            saved |= {"logits": logits.detach().clone(), "loss": loss.detach().reshape(1)}
            norms = torch.stack([p.grad.norm() for p in parameters.values()])
            norm = torch.linalg.vector_norm(norms)
            saved["grad_norm"] = norm.reshape(1).clone()
            clip = round(float(norm) / 2, 3)  # active
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), clip)
        if step == 1:
            saved |= of("clipped", {n: p.grad for n, p in parameters.items()})
        optimizer.step()
        if step in kept_steps:
            saved |= of(f"step{step}", parameters)

    metadata = {
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "ffn": config.intermediate_size,
        "vocab": config.vocab_size,
        "rope_theta": config.rope_theta,
        "norm_eps": config.rms_norm_eps,
        "tied": int(config.tie_word_embeddings),
        "sequences": SEQUENCES,
        "seq": SEQ,
        "lr": LR,
        "weight_decay": WEIGHT_DECAY,
        "beta1": BETAS[0],
        "beta2": BETAS[1],
        "eps": EPS,
        "clip": clip,
    }
    save_file(saved, folder / f"golden_{name}.safetensors", {"config": json.dumps(metadata)})
    (folder / f"golden_{name}.bytes").write_bytes(bytes(text.tolist()))
    loss = float(saved["loss"])
    print(f"{name}: loss {loss:.6f}, gradient norm {float(norm):.6f} clipped to {clip}")


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "src/dynatrain/trainer/testdata"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    for name, kept_steps in VARIANTS.items():
        make_variant(name, kept_steps, folder)


if __name__ == "__main__":
    main()
