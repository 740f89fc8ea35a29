#!/usr/bin/env python3
"""Turns a text into token ids with a Hugging Face tokenizer.json, as an llm.c .bin file for --data.

    pip install tokenizers          (not among what the rest of the project needs)
    scripts/tokenize_text.py TOKENIZER.json TEXT -o OUT.bin [--end-of-text TOKEN]

The file has 16-bit ids where the vocabulary allows, else 32-bit ones (magic 20240520 version 1, or 20240801
version 7). Lines are tokenized one by one, with their line ends; a text with no line end at all is one line. Says how
many tokens there are and the vocab_size that a model needs.
"""

import argparse
import struct
import sys

import numpy as np

HEADER_INTS = 256
FORMATS = {np.uint16: (20240520, 1), np.uint32: (20240801, 7)}
MOST_TOKENS = 2**31 - 1
BATCH_LINES = 4096


def batches(lines, size):
    batch = []
    for line in lines:
        batch.append(line)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def tokenize(encode, lines, out, dtype, end_of_text=None):
    """Writes the ids of all lines; returns their number. `encode` maps a list of lines to lists of ids."""
    magic, version = FORMATS[dtype]
    header = [magic, version, 0] + [0] * (HEADER_INTS - 3)
    out.write(struct.pack(f"<{HEADER_INTS}i", *header))
    count = 0
    for batch in batches(lines, BATCH_LINES):
        for ids in encode(batch):
            out.write(np.asarray(ids, dtype).tobytes())
            count += len(ids)
    if end_of_text is not None:
        out.write(np.asarray([end_of_text], dtype).tobytes())
        count += 1
    if count > MOST_TOKENS:
        sys.exit(f"tokenize_text: {count} tokens; the header counts up to {MOST_TOKENS}: split the text")
    out.seek(0)
    out.write(struct.pack("<3i", magic, version, count))
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("text", help="UTF-8 text")
    parser.add_argument("-o", "--output", required=True, help="the .bin file")
    parser.add_argument("--end-of-text", help="token to write once at the end, such as <|endoftext|>")
    args = parser.parse_args()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.exit("tokenize_text: the package is missing: pip install tokenizers")
    tokenizer = Tokenizer.from_file(args.tokenizer)
    vocab = tokenizer.get_vocab_size(with_added_tokens=True)
    end = tokenizer.token_to_id(args.end_of_text) if args.end_of_text else None
    if args.end_of_text and end is None:
        sys.exit(f"tokenize_text: the tokenizer has no token {args.end_of_text}")
    dtype = np.uint16 if vocab <= 2**16 else np.uint32
    encode = lambda lines: [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    with open(args.text, encoding="utf-8", newline="") as text, open(args.output, "wb") as out:
        count = tokenize(encode, text, out, dtype, end)
    print(f"{args.output}: {count} tokens of {np.dtype(dtype).itemsize} bytes; vocab_size {vocab}")


if __name__ == "__main__":
    main()
