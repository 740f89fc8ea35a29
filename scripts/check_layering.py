#!/usr/bin/env python3
"""Checks that the folders under src/dynatrain keep to the layers of the design.

Every #include of ours must lead to the same folder or to one that the folder may use, directly or
through others; torch headers belong to bridge, trainer and apps; a folder's code lives in the
namespace of its name (base: plain `dynatrain`); no namespace of ours hides torch's own.

    check_layering.py [ROOT]      checks ROOT/src/dynatrain, by default of this repository
    check_layering.py --self-test checks that planted violations are found
"""

import argparse
import pathlib
import re
import sys
import tempfile

# What a folder may use directly; the rest follows by closure.
ALLOWED = {
    "base": [],
    "vps": ["base"],
    "models": ["vps"],
    "planner": ["vps"],
    "transport": ["base"],
    "engine": ["planner", "transport"],
    "elastic": ["engine"],
    "io": ["vps", "planner", "engine"],
    "bridge": ["elastic", "io"],
    "trainer": ["bridge", "models"],
    "apps": ["trainer"],
}
TORCH_FOLDERS = {"bridge", "trainer", "apps"}
TORCH_INCLUDE = re.compile(r"^(torch|ATen|c10|c10d|caffe2|gloo|ucp|ucs|uct)/")
HIDING_NAMESPACES = {"torch", "c10d", "c10", "at"}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
NAMESPACE = re.compile(r"\bnamespace\s+([A-Za-z_][\w:]*)\s*\{(?=([^{}]*\}?))")
FORWARD_DECLARATIONS = re.compile(r"(\s*(class|struct)\s+\w+;)*\s*\}")
# Headers that the torch wheel does not ship, in their own namespaces.
STUB_FOLDER = "gloo_stub"
COMMENT_OR_STRING = re.compile(
    r'R"(?P<delim>[^()\\\s]*)\(.*?\)(?P=delim)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL
)


def closure(allowed):
    """Returns folder -> all folders it may include, itself among them; a cycle is an error."""
    reached = {}

    def visit(folder, path):
        if folder in path:
            raise ValueError("cycle of folders: " + " -> ".join([*path, folder]))
        if folder not in reached:
            uses = {folder}
            for used in allowed[folder]:
                uses |= visit(used, [*path, folder])
            reached[folder] = uses
        return reached[folder]

    for folder in allowed:
        visit(folder, [])
    return reached


def without_comments(text):
    """Blanks comments and strings, keeping line numbers; includes are read before this."""
    return COMMENT_OR_STRING.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def include_errors(folder, lines, may_use):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        if header.startswith("dynatrain/"):
            used = header.split("/")[1]
            if used not in may_use:
                yield number, f"folder {folder} must not include {header}"
        elif TORCH_INCLUDE.match(header) and folder not in TORCH_FOLDERS:
            allowed = ", ".join(sorted(TORCH_FOLDERS))
            yield number, f"folder {folder} must not include {header}: only {allowed} may"


def namespace_errors(folder, text):
    expected = "dynatrain" if folder == "base" else f"dynatrain::{folder}"
    for match in NAMESPACE.finditer(text):
        name = match.group(1)
        number = text.count("\n", 0, match.start()) + 1
        parts = name.split("::")
        hiding = HIDING_NAMESPACES & set(parts)
        at_top = text.count("{", 0, match.start()) == text.count("}", 0, match.start())
        only_declares = at_top and FORWARD_DECLARATIONS.fullmatch(match.group(2))
        theirs = parts[0] in HIDING_NAMESPACES and folder in TORCH_FOLDERS
        if hiding and not (only_declares and theirs):
            yield number, f"namespace {name} hides torch's {sorted(hiding)[0]}"
        elif parts[0] == "dynatrain":
            inner = parts[1] if len(parts) > 1 else ""
            wrong = inner in ALLOWED if folder == "base" else inner != folder
            if wrong and not only_declares:
                yield number, f"namespace {name} in folder {folder}: it is {expected} there"


def check(root):
    """Returns a list of 'file:line: what is wrong'."""
    source = pathlib.Path(root) / "src" / "dynatrain"
    reach = closure(ALLOWED)
    errors = []
    for path in sorted(source.rglob("*")):
        if path.suffix not in {".h", ".cc", ".cpp", ".hpp", ".cu", ".inc"}:
            continue
        parts = path.relative_to(source).parts
        name = path.relative_to(root)
        folder = parts[0]
        if len(parts) == 1 or folder not in ALLOWED:
            errors.append(f"{name}:1: not in one of the folders {', '.join(ALLOWED)}")
            continue
        text = path.read_text(encoding="utf-8")
        found = [*include_errors(folder, text.splitlines(), reach[folder])]
        if STUB_FOLDER not in parts[1:-1]:
            found += namespace_errors(folder, without_comments(text))
        errors += [f"{name}:{number}: {message}" for number, message in sorted(found)]
    return errors


GOOD = {
    "base/status.h": "namespace dynatrain {\nnamespace internal {\n}\n}\n",
    "vps/box.h": '#include "dynatrain/base/status.h"\nnamespace dynatrain::vps {\n}\n',
    "engine/copy.cc": '#include "dynatrain/vps/box.h"\n#include "dynatrain/transport/transport.h"\n'
    "namespace dynatrain::engine {\nnamespace {\n}\n}  // namespace dynatrain::engine\n",
    "bridge/c10d.cc": "#include <torch/csrc/x.h>\nnamespace at {\nclass Tensor;\n}  // at\n"
    "namespace dynatrain::bridge {\n// namespace torch {\n}\n",
    "bridge/gloo_stub/gloo/context.h": "namespace gloo {\n}\n",
    "apps/main.cc": '#include "dynatrain/vps/box.h"\n#include "dynatrain/trainer/loop.h"\n',
}
BAD = {
    "vps/a.h": ('#include "dynatrain/planner/route.h"\n', "must not include"),
    "base/b.h": ('#include "dynatrain/vps/box.h"\n', "must not include"),
    "transport/c.cc": ('#include "dynatrain/vps/box.h"\n', "must not include"),
    "io/d.cc": ('#include "dynatrain/elastic/store.h"\n', "must not include"),
    "models/e.cc": ('  #  include "dynatrain/io/json.h"\n', "must not include"),
    "engine/f.cc": ("#include <ATen/ATen.h>\n", "must not include"),
    "elastic/g.cc": ("#include <c10/util/intrusive_ptr.h>\n", "must not include"),
    "elastic/h.cc": ("#include <torch/torch.h>\n", "must not include"),
    "bridge/i.cc": ("namespace dynatrain::torch {\n}\n", "hides torch's"),
    "bridge/j.cc": ("namespace c10d {\nint x;\n}\n", "hides torch's"),
    "bridge/o.cc": ("namespace dynatrain::bridge {\nnamespace torch {\nclass A;\n}\n}\n", "hides"),
    "engine/p.cc": ("namespace c10d {\nclass Backend;\n}\n", "hides torch's"),
    "planner/k.h": ("namespace dynatrain::vps {\nint x;\n}\n", "it is dynatrain::planner"),
    "planner/l.h": ("namespace dynatrain {\nint x;\n}\n", "it is dynatrain::planner"),
    "base/m.h": ("namespace dynatrain::vps {\nint x;\n}\n", "it is dynatrain there"),
    "misc/n.h": ("", "not in one of the folders"),
}


def self_test():
    with tempfile.TemporaryDirectory() as root:
        files = {**GOOD, **{name: text for name, (text, _) in BAD.items()}}
        for name, text in files.items():
            path = pathlib.Path(root) / "src" / "dynatrain" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        errors = check(root)
    failures = []
    for name, (_, message) in BAD.items():
        hits = [e for e in errors if e.startswith(f"src/dynatrain/{name}:") and message in e]
        if len(hits) != 1:
            failures.append(f"{name}: expected one error '{message}', found {hits}")
    for error in errors:
        if not any(f"/{name}:" in error for name in BAD):
            failures.append(f"false alarm: {error}")
    try:
        closure({"a": ["b"], "b": ["a"]})
        failures.append("a cycle of folders went unnoticed")
    except ValueError:
        pass
    for failure in failures:
        print(failure)
    print(f"self-test: {len(BAD) + 1} violations planted, {len(failures)} failures")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    errors = check(args.root)
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
