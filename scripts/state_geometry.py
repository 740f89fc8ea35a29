"""Who holds which element, derived from the written rules alone.

This is the independent half of validation: it shares no code with the program. It knows a state as
*runs*: `count` elements that are consecutive both in a logical tensor (row-major) and in a flat buffer of a
rank. Rules come from src/dynatrain/vps/{layout,shard_map,catalog}.h and src/dynatrain/models/catalog.h.
Standard library only.

    parameters = llama_parameters(config)
    state = place(parameters, parse_layout("tp=2,pp=2,dp=2,zero=1"))
    state[rank]["exp_avg/layers.3[1/2]"].runs -> [Run(tensor="exp_avg/layers.3...", logical=0, ...)]
"""

import itertools
import math
from dataclasses import dataclass, field

KINDS = ("param", "exp_avg", "exp_avg_sq")  # of fp32 training with Adam
KINDS_OF = {"fp32": KINDS, "bf16": ("param", "master", "exp_avg", "exp_avg_sq")}
OPTIMIZER_KINDS = ("master", "exp_avg", "exp_avg_sq")  # cut over dp by zero=1
ELEM_BYTES = 4  # but of bf16 parameters 2

# The keys of a Hugging Face config.json.
TINY_LLAMA = dict(num_hidden_layers=7, hidden_size=192, num_attention_heads=8, num_key_value_heads=4, head_dim=24,
                  intermediate_size=512, vocab_size=256, tie_word_embeddings=False)


def elem_bytes(kind, dtype):
    return 2 if (kind, dtype) == ("param", "bf16") else ELEM_BYTES


@dataclass(frozen=True)
class Parameter:
    name: str
    shape: tuple
    split_axis: int | None  # cut (balanced) over tensor-parallel positions; None: a replica everywhere
    homes: tuple  # of ("embedding",), ("layer", n), ("head",)

    @property
    def elems(self):
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    tp: int = 1
    pp: int = 1
    dp: int = 1
    zero: int = 0
    reverse: bool = False
    cut: str = "bucketed"  # contiguous | bucketed | elems
    bucket_elems: int = 0
    start_alignment: int = 1
    end_alignment: int = 1
    end_alignment_per_dp: int = 1
    split: tuple = ()
    ranks: tuple = ()
    axes: tuple = ("tp", "dp", "pp")  # smallest stride first

    @property
    def world_size(self):
        return self.tp * self.pp * self.dp

    def rank_at(self, position):
        return self.ranks[position] if self.ranks else position

    def all_ranks(self):
        return [self.rank_at(position) for position in range(self.world_size)]

    def roles(self):
        """(rank, {"tp": t, "dp": d, "pp": p}) of every position."""
        degrees = {"tp": self.tp, "dp": self.dp, "pp": self.pp}
        for position in range(self.world_size):
            role, rest = {}, position
            for axis in self.axes:
                rest, role[axis] = divmod(rest, degrees[axis])
            yield self.rank_at(position), role

    def layers_of(self, stage, num_layers):
        """range of the layers of a stage."""
        sizes = self.split or [balanced(num_layers, self.pp, i)[1] - balanced(num_layers, self.pp, i)[0]
                               for i in range(self.pp)]
        begin = sum(sizes[:stage])
        return range(begin, begin + sizes[stage])


@dataclass(frozen=True)
class Run:
    tensor: str  # "exp_avg/layers.3.attn.qkv.weight"
    logical: int  # first element in the logical tensor, row-major
    offset: int  # first element in the buffer
    count: int


@dataclass
class Buffer:
    kind: str
    bucket: str  # "layers.3", or the run of parameters that shares the bucket
    index: int  # of the bucket on its stage
    elems: int
    runs: list = field(default_factory=list)


def balanced(extent, parts, part):
    """[begin, end) of a part: the first extent mod parts parts get one more."""
    size, more = divmod(extent, parts)
    begin = part * size + min(part, more)
    return begin, begin + size + (1 if part < more else 0)


def parse_ranks(text):
    ranks = []
    for item in text.split("+"):
        first, _, last = item.partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return tuple(ranks)


def parse_zero_order(text):
    order, cut, *alignments = text.split("-")
    fields = dict(reverse={"forward": False, "reverse": True}[order])
    if cut.startswith("bucketed:"):
        fields.update(cut="elems", bucket_elems=int(cut.split(":")[1]))
    else:
        fields.update(cut={"contiguous": "contiguous", "bucketed": "bucketed"}[cut])
    keys = {"start": "start_alignment", "end": "end_alignment", "endx": "end_alignment_per_dp"}
    for alignment in alignments:
        key, _, value = alignment.partition(":")
        fields[keys[key]] = int(value)
    return fields


def parse_layout(spec):
    """A canonical SPEC, as the program prints it."""
    fields = {}
    for item in spec.split(","):
        key, _, value = item.partition("=")
        if key in ("tp", "pp", "dp", "zero"):
            fields[key] = int(value)
        elif key == "zero_order":
            fields.update(parse_zero_order(value))
        elif key == "split":
            fields["split"] = tuple(int(n) for n in value.split("+"))
        elif key == "ranks":
            fields["ranks"] = parse_ranks(value)
        elif key == "order":
            fields["axes"] = tuple(value.split("-"))
        else:
            raise ValueError(f"SPEC {spec}: unknown key {key}")
    layout = Layout(**fields)
    if layout.ranks and len(layout.ranks) != layout.world_size:
        raise ValueError(f"SPEC {spec}: {len(layout.ranks)} ranks, {layout.world_size} positions")
    return layout


def llama_parameters(config):
    """The catalog of a LLaMA model in its order of registration: embedding, each layer, head."""
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    groups, head_dim = config["num_key_value_heads"], config["head_dim"]
    per_group = config["num_attention_heads"] // groups
    embedding, head = ("embedding",), ("head",)
    tied = config["tie_word_embeddings"]
    result = [Parameter("embedding.weight", (vocab, hidden), 0, (embedding, head) if tied else (embedding,))]
    for n in range(config["num_hidden_layers"]):
        home, prefix = (("layer", n),), f"layers.{n}."
        result += [
            Parameter(prefix + "input_norm.weight", (hidden,), None, home),
            Parameter(prefix + "attn.qkv.weight", (groups, per_group + 2, head_dim, hidden), 0, home),
            Parameter(prefix + "attn.out.weight", (hidden, groups, per_group, head_dim), 1, home),
            Parameter(prefix + "post_norm.weight", (hidden,), None, home),
            Parameter(prefix + "mlp.gate_up.weight", (2, ffn, hidden), 1, home),
            Parameter(prefix + "mlp.down.weight", (hidden, ffn), 1, home),
        ]
    result.append(Parameter("final_norm.weight", (hidden,), None, (head,)))
    if not tied:
        result.append(Parameter("head.weight", (vocab, hidden), 0, (head,)))
    return result


def homes_of_stage(layout, stage, num_layers):
    homes = [("layer", n) for n in layout.layers_of(stage, num_layers)]
    if stage == 0:
        homes.insert(0, ("embedding",))
    if stage == layout.pp - 1:
        homes.append(("head",))
    return homes


def items_of_stage(parameters, layout, stage, num_layers):
    """(home, parameter) in buffer order; a tied parameter once, at its first home on the stage."""
    items, seen = [], set()
    for home in homes_of_stage(layout, stage, num_layers):
        for parameter in parameters:
            if home in parameter.homes and parameter.name not in seen:
                seen.add(parameter.name)
                items.append((home, parameter))
    return items[::-1] if layout.reverse else items


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def logical_runs(parameter, parts, part):
    """(first element, count) of the maximal contiguous runs of a tensor-parallel part, in row-major order."""
    axis = parameter.split_axis
    if axis is None:
        return [(0, parameter.elems)]
    begin, end = balanced(parameter.shape[axis], parts, part)
    inner = math.prod(parameter.shape[axis + 1:])
    outer = math.prod(parameter.shape[:axis])
    row = parameter.shape[axis] * inner
    count = (end - begin) * inner
    if count == 0:
        return []
    if count == row:
        return [(0, outer * row)]
    return [(i * row + begin * inner, count) for i in range(outer)]


@dataclass
class Bucket:
    name: str
    entries: list  # (parameter, runs, offset)
    real_elems: int
    elems: int


def home_name(home):
    return f"layers.{home[1]}" if home[0] == "layer" else home[0]


def buckets_of(parameters, layout, stage, tp, num_layers):
    """The buckets of (stage, tp), in buffer order."""
    groups, last_home, end = [], None, 0
    for home, parameter in items_of_stage(parameters, layout, stage, num_layers):
        closed = not groups
        if groups and layout.cut == "bucketed":
            closed = home != last_home
        elif groups and layout.cut == "elems":
            closed = end >= layout.bucket_elems
        if closed:
            groups.append((home_name(home), []))
            end = 0
        runs = logical_runs(parameter, layout.tp, tp)
        offset = round_up(end, layout.start_alignment)
        end = offset + sum(count for _, count in runs)
        groups[-1][1].append((parameter, runs, offset))
        last_home = home
    alignment = layout.end_alignment
    if layout.zero >= 1:
        alignment = math.lcm(layout.end_alignment, layout.end_alignment_per_dp * layout.dp)
    result = []
    for name, entries in groups:
        _, runs, offset = entries[-1]
        real = offset + sum(count for _, count in runs)
        result.append(Bucket(name, entries, real, round_up(real, alignment)))
    return result


def slice_of(bucket, kind, begin, end):
    """Runs of the bucket's elements [begin, end), with offsets from `begin`."""
    result = []
    for parameter, runs, offset in bucket.entries:
        position = offset
        for logical, count in runs:
            lo, hi = max(position, begin), min(position + count, end)
            if lo < hi:
                result.append(Run(f"{kind}/{parameter.name}", logical + lo - position, lo - begin, hi - lo))
            position += count
    return result


def place(parameters, layout, kinds=KINDS):
    """{rank: [Buffer]}: everything that every rank of the layout holds."""
    num_layers = 1 + max(home[1] for p in parameters for home in p.homes if home[0] == "layer")
    state = {}
    for rank, role in layout.roles():
        buffers = []
        buckets = buckets_of(parameters, layout, role["pp"], role["tp"], num_layers)
        for kind, (index, bucket) in itertools.product(kinds, enumerate(buckets)):
            begin, end = 0, bucket.elems
            if layout.zero >= 1 and kind in OPTIMIZER_KINDS:
                begin = role["dp"] * bucket.elems // layout.dp
                end = (role["dp"] + 1) * bucket.elems // layout.dp
            runs = slice_of(bucket, kind, begin, end)
            buffers.append(Buffer(kind, bucket.name, index, end - begin, runs))
        state[rank] = buffers
    return state


def intervals_by_tensor(buffers):
    """{tensor: sorted [(begin, end)]}, neighbours joined."""
    found = {}
    for buffer in buffers:
        for run in buffer.runs:
            found.setdefault(run.tensor, []).append((run.logical, run.logical + run.count))
    for tensor, intervals in found.items():
        intervals.sort()
        joined = intervals[:1]
        for begin, end in intervals[1:]:
            if begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((begin, end))
        found[tensor] = joined
    return found


def common_elems(a, b):
    """Elements in both of two sorted lists of disjoint intervals."""
    total = i = j = 0
    while i < len(a) and j < len(b):
        total += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


@dataclass(frozen=True)
class Transition:
    moved_bytes: int  # new elements that the rank did not hold, each counted once per rank: the minimum
    kept_bytes: int
    total_bytes: int  # of the new state on all ranks


def transition(parameters, old, new, dtype="fp32"):
    """What a change of layout must move at least, element by element."""
    before, after = (place(parameters, layout, KINDS_OF[dtype]) for layout in (old, new))
    moved = kept = 0
    for rank, buffers in after.items():
        held = intervals_by_tensor(before.get(rank, []))
        for tensor, wanted in intervals_by_tensor(buffers).items():
            need = sum(end - begin for begin, end in wanted)
            have = common_elems(held.get(tensor, []), wanted)
            size = elem_bytes(tensor.partition("/")[0], dtype)
            kept += have * size
            moved += (need - have) * size
    return Transition(moved, kept, moved + kept)
