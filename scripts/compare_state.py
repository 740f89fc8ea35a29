#!/usr/bin/env python3
"""Compares, element by element, the state dumped just before and just after switches.

    compare_state.py DUMP_DIR            every pair switch-<id>-{before,after} in it
    compare_state.py DUMP_DIR --switch 3
    compare_state.py DUMP_DIR --self-test

Rebuilds every logical tensor from the raw flat buffers of all ranks (state_geometry.py: the written rules, none of the
program's code). Passes only if all replicas agree bit for bit, all padding is zero, every element of every tensor is
there, and each has the same bits before and after; with bf16, if also every parameter is its master rounded to nearest
even.
"""

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import state_geometry as geometry

SHOWN_DIFFERENCES = 5


class StateError(Exception):
    """Names tensor, index, ranks and values."""


def read_safetensors(path):
    """{name: 1-D array of raw elements, bf16 as the fp32 it stands for}, in the order of their data."""
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    header_bytes = int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8:8 + header_bytes].tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = (8 + header_bytes + at for at in entry["data_offsets"])
        if entry["dtype"] == "F32":
            tensors[name] = np.frombuffer(raw[begin:end].tobytes(), dtype=np.uint32)
        elif entry["dtype"] == "BF16":
            tensors[name] = np.frombuffer(raw[begin:end].tobytes(), dtype=np.uint16).astype(np.uint32) << 16
        else:
            raise StateError(f"{path.name}: {name} has dtype {entry['dtype']}, expected F32 or BF16")
        if len(tensors[name]) != math.prod(entry["shape"]):
            raise StateError(f"{path.name}: {name} has {len(tensors[name])} elements for shape {entry['shape']}")
    return tensors


def data_offset(path, name):
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        return 8 + header_bytes + json.loads(file.read(header_bytes))[name]["data_offsets"][0]


def bind(buffers, tensors, where):
    """[(name in the file, Buffer)]: each expected buffer with its tensor."""
    by_kind = {}
    for name in tensors:
        kind, _, bucket = name.partition("/")
        by_kind.setdefault(kind, []).append((re.sub(r"\[.*\]$", "", bucket), name))
    result = []
    for buffer in buffers:
        candidates = by_kind.get(buffer.kind, [])
        named = [name for bucket, name in candidates if bucket == buffer.bucket]
        if len(named) == 1:
            name = named[0]
        elif buffer.index < len(candidates):
            name = candidates[buffer.index][1]
        else:
            raise StateError(f"{where}: buffer {buffer.index} of kind {buffer.kind} ({buffer.bucket}) is missing")
        if len(tensors[name]) != buffer.elems:
            raise StateError(f"{where}: {name} has {len(tensors[name])} elements, the layout asks for {buffer.elems}")
        result.append((name, buffer))
    if len({name for name, _ in result}) != len(tensors):
        raise StateError(f"{where}: {len(tensors)} buffers, the layout has {len(result)}")
    return result


def round_to_bf16(bits):
    """Raw fp32 elements to the nearest ones that bf16 has, ties to even."""
    wide = bits.astype(np.uint64)
    return ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16 << 16).astype(np.uint32)


def to_float(bits):
    return float(np.uint32(bits).view(np.float32))


def describe(shape, flat, a, b):
    index = tuple(int(i) for i in np.unravel_index(flat, shape))
    return f"index {index}: {to_float(a)!r} (0x{a:08x}) and {to_float(b)!r} (0x{b:08x})"


@dataclass
class Logical:
    bits: np.ndarray
    held: np.ndarray  # which elements some rank holds
    runs: list = field(default_factory=list)  # (rank, first logical element, count)

    def holders_of(self, element):
        return sorted({rank for rank, begin, count in self.runs if begin <= element < begin + count})


class Dump:
    """One directory of a dump, as logical tensors."""

    def __init__(self, directory):
        self.directory = Path(directory)
        about = json.loads((self.directory / "layout.json").read_text())
        self.spec = about["spec"]
        self.step = about["step"]
        self.num_layers = about["model"]["num_hidden_layers"]
        self.parameters = geometry.llama_parameters(about["model"])
        self.dtype = about.get("dtype", "fp32")
        kinds = geometry.KINDS_OF[self.dtype]
        self.shapes = {f"{kind}/{p.name}": p.shape for kind in kinds for p in self.parameters}
        self.placement = geometry.place(self.parameters, geometry.parse_layout(self.spec), kinds)
        self.problems = []
        self.padding_elems = 0
        self.replica_elems = 0
        self.tensors = {name: Logical(np.zeros(math.prod(shape), np.uint32), np.zeros(math.prod(shape), bool))
                        for name, shape in self.shapes.items()}
        found = {int(re.fullmatch(r"rank-(\d+)", path.stem)[1]) for path in self.directory.glob("rank-*.safetensors")}
        missing = sorted(set(self.placement) - found)
        if missing:
            raise StateError(f"{self.directory.name}: no file of ranks {missing}")
        for rank, buffers in self.placement.items():
            self._read_rank(rank, buffers)
        self._check_complete()

    def forget(self):
        """Lets go of the values."""
        self.tensors = {}

    def rank_path(self, rank):
        return self.directory / f"rank-{rank}.safetensors"

    def _read_rank(self, rank, buffers):
        where = f"{self.directory.name} rank {rank}"
        tensors = read_safetensors(self.rank_path(rank))
        for name, buffer in bind(buffers, tensors, where):
            bits = tensors[name]
            covered = np.zeros(len(bits), bool)
            for run in buffer.runs:
                values = bits[run.offset:run.offset + run.count]
                covered[run.offset:run.offset + run.count] = True
                self._take(rank, run, values)
            padding = np.flatnonzero(~covered)
            self.padding_elems += len(padding)
            dirty = padding[bits[padding] != 0]
            if len(dirty):
                self.problems.append(f"{where}: padding of {name} is not zero at element {dirty[0]}")

    def _take(self, rank, run, values):
        logical = self.tensors[run.tensor]
        where = slice(run.logical, run.logical + run.count)
        held, bits = logical.held[where], logical.bits[where]
        self.replica_elems += int(held.sum())
        wrong = np.flatnonzero(held & (bits != values))
        if len(wrong):
            flat = run.logical + int(wrong[0])
            others = [holder for holder in logical.holders_of(flat) if holder != rank]
            self.problems.append(
                f"{self.directory.name}: replicas of {run.tensor} differ in {len(wrong)} elements, first between ranks "
                f"{others} and {rank}, {describe(self.shapes[run.tensor], flat, bits[wrong[0]], values[wrong[0]])}")
        logical.bits[where] = np.where(held, bits, values)
        logical.held[where] = True
        logical.runs.append((rank, run.logical, run.count))

    def _check_complete(self):
        for name, logical in self.tensors.items():
            if not logical.held.all():
                self.problems.append(f"{self.directory.name}: nobody holds {name} at flat index "
                                     f"{int(np.flatnonzero(~logical.held)[0])}")
        for parameter in self.parameters if self.dtype == "bf16" else ():
            name, master = f"param/{parameter.name}", self.tensors[f"master/{parameter.name}"]
            rounded = round_to_bf16(master.bits)
            wrong = np.flatnonzero(rounded != self.tensors[name].bits)
            if len(wrong):
                flat = int(wrong[0])
                self.problems.append(
                    f"{self.directory.name}: {name} is not its master rounded in {len(wrong)} elements, first "
                    f"{describe(parameter.shape, flat, self.tensors[name].bits[flat], rounded[flat])}")

    def elem_bytes(self, tensor):
        return geometry.elem_bytes(tensor.partition("/")[0], self.dtype)

    def raw(self, tensor, bits):
        """Elements of a tensor as they lie in a file."""
        bits = np.asarray(bits, np.uint32)
        return (bits if self.elem_bytes(tensor) == 4 else (bits >> 16).astype(np.uint16)).tobytes()


@dataclass
class Comparison:
    switch: int
    before: Dump
    after: Dump
    problems: list
    tensors: int
    elems: int

    def summary(self):
        ranks = f"{len(self.before.placement)} -> {len(self.after.placement)} ranks"
        verdict = "equal bit for bit" if not self.problems else f"{len(self.problems)} PROBLEMS"
        return (f"switch {self.switch}  {self.before.spec} -> {self.after.spec}  {ranks}: {self.tensors} tensors, "
                f"{self.elems:,} elements, {self.before.replica_elems + self.after.replica_elems:,} replicated, "
                f"{self.before.padding_elems + self.after.padding_elems:,} padding: {verdict}")


def compare_switch(root, switch):
    """Raises StateError if a dump cannot be read as what its layout says."""
    before = Dump(Path(root) / f"switch-{switch}-before")
    after = Dump(Path(root) / f"switch-{switch}-after")
    problems = before.problems + after.problems
    if before.step != after.step:
        problems.append(f"switch {switch}: dumped at steps {before.step} and {after.step}")
    elems = 0
    for name, old in before.tensors.items():
        new = after.tensors[name]
        elems += len(old.bits)
        wrong = np.flatnonzero(old.bits != new.bits)
        if len(wrong):
            flat = int(wrong[0])
            problems.append(f"switch {switch}: {name} differs in {len(wrong)} elements, first at ranks "
                            f"{old.holders_of(flat)} before and {new.holders_of(flat)} after, "
                            f"{describe(before.shapes[name], flat, old.bits[flat], new.bits[flat])}")
    return Comparison(switch, before, after, problems, len(before.tensors), elems)


def switches_in(root):
    if not Path(root).is_dir():
        raise StateError(f"{root} is no directory; right is what was given to dynatrain train --dump-state")
    return sorted(int(m[1]) for p in Path(root).iterdir() if (m := re.fullmatch(r"switch-(\d+)-after", p.name)))


# ---- faults that the comparison must find ------------------------------------------------------------------------


def buffer_of(dump, rank, run_wanted):
    """(file offset in bytes of the run, run) on `rank` for the first run that `run_wanted` accepts."""
    tensors = read_safetensors(dump.rank_path(rank))
    for name, buffer in bind(dump.placement[rank], tensors, "self-test"):
        for run in buffer.runs:
            if run_wanted(run):
                return data_offset(dump.rank_path(rank), name) + dump.elem_bytes(run.tensor) * run.offset, run
    return None, None


def patch(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def patch_element(dump, tensor, element, value):
    """Writes `value` at one logical element on every rank that holds it."""
    for rank in dump.tensors[tensor].holders_of(element):
        at, run = buffer_of(dump, rank, lambda r: r.tensor == tensor and r.logical <= element < r.logical + r.count)
        patch(dump.rank_path(rank), at + dump.elem_bytes(tensor) * (element - run.logical), dump.raw(tensor, value))


def flip_one_element(dump, rng):
    tensor = f"exp_avg_sq/layers.{rng.integers(dump.num_layers)}.mlp.down.weight"
    element = int(rng.integers(len(dump.tensors[tensor].bits)))
    patch_element(dump, tensor, element, int(dump.tensors[tensor].bits[element]) ^ 1)
    return f"lowest bit of {tensor} element {element}, on all its holders"


def swap_two_layers(dump, rng):
    first, second = (int(n) for n in rng.choice(dump.num_layers, 2, replace=False))
    a, b = (f"param/layers.{n}.attn.out.weight" for n in (first, second))
    for tensor, other in ((a, b), (b, a)):
        values = dump.tensors[other].bits
        for rank in dump.placement:
            tensors = read_safetensors(dump.rank_path(rank))
            for name, buffer in bind(dump.placement[rank], tensors, "self-test"):
                base = data_offset(dump.rank_path(rank), name)
                for run in buffer.runs:
                    if run.tensor == tensor:
                        patch(dump.rank_path(rank), base + dump.elem_bytes(tensor) * run.offset,
                              dump.raw(tensor, values[run.logical:run.logical + run.count]))
    return f"{a} and {b} exchanged, on all their holders"


def make_replica_stale(dump, rng):
    replicated = [(name, holders) for name, logical in dump.tensors.items()
                  if name.startswith("param/") and len(holders := logical.holders_of(0)) > 1]
    tensor, holders = replicated[int(rng.integers(len(replicated)))]
    at, run = buffer_of(dump, holders[-1], lambda r: r.tensor == tensor and r.logical == 0)
    # At least one step between neighbouring numbers of bf16, which has 8 significant bits.
    stale = dump.tensors[tensor].bits[:run.count].view(np.float32) * np.float32(1 + 2**-7)
    patch(dump.rank_path(holders[-1]), at, dump.raw(tensor, stale.view(np.uint32)))
    return f"{tensor} on rank {holders[-1]} as it was some steps ago, {run.count} elements"


def self_test(root, seed):
    """Each fault, in a copy of one dump, must be found. {what was done: whether it was found}."""
    rng = np.random.default_rng(seed)
    print(f"self-test with seed {seed}")
    # The after-state with the most replicas: every fault has something to break there.
    switch = max(switches_in(root), key=lambda s: Dump(Path(root) / f"switch-{s}-after").replica_elems)
    found = {}
    for fault in (flip_one_element, swap_two_layers, make_replica_stale):
        with tempfile.TemporaryDirectory(dir=Path(root).parent) as copy:
            for when in ("before", "after"):
                shutil.copytree(Path(root) / f"switch-{switch}-{when}", Path(copy) / f"switch-{switch}-{when}")
            what = fault(Dump(Path(copy) / f"switch-{switch}-after"), rng)
            problems = compare_switch(copy, switch).problems
        found[what] = bool(problems)
        print(f"  {fault.__name__}: {what}\n    " + (f"found: {problems[0]}" if problems else "NOT FOUND"))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dump", type=Path, help="directory given to dynatrain train --dump-state")
    parser.add_argument("--switch", type=int, help="only this one")
    parser.add_argument("--self-test", action="store_true", help="break copies of a dump: each must be found")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        switches = switches_in(args.dump)
        if args.switch is not None:
            switches = [switch for switch in switches if switch == args.switch]
        if not switches:
            wanted = "<id>" if args.switch is None else args.switch
            sys.exit(f"compare_state: no switch-{wanted}-before and -after in {args.dump}")
        if args.self_test:
            sys.exit(0 if all(self_test(args.dump, args.seed).values()) else 1)
    except (StateError, OSError, KeyError, ValueError) as error:
        sys.exit(f"compare_state: {error}")
    failed = False
    for switch in switches:
        try:
            comparison = compare_switch(args.dump, switch)
        except (StateError, OSError, KeyError, ValueError) as error:
            failed = True
            print(f"switch {switch}: cannot be compared: {error}")
            continue
        failed |= bool(comparison.problems)
        print(comparison.summary())
        for problem in comparison.problems[:SHOWN_DIFFERENCES]:
            print(f"  {problem}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
