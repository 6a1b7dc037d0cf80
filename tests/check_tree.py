#!/usr/bin/env python3
"""Holds the tree to its own rules: the order of includes between folders, the sizes of files and functions, who
reads the time of day, what can be run by its name.

check_tree.py ROOT
"""
import os
import pathlib
import re
import sys

# Each folder may include only itself and those before it.
ORDER = "base kernels kv tokenizer grammar model plan cluster engine server cli".split()
# Likewise within a folder: what lies in the folder itself comes first, since all of these may include it. Tests may
# include what they like of it.
ORDER_WITHIN = {"kv": "tiers cache".split(), "tokenizer": ["jinja"], "model": "files forward".split(),
                "server": "upstream report answer chat api http".split()}
MAX_LINES = 600
MAX_FUNCTION_LINES = 70  # but for tests, which may list cases
# A clock that jumps moves no deadline: it is only told, to clients and to templates.
TIME_OF_DAY = re.compile(r"\b(?:system_clock|high_resolution_clock|utc_clock|CLOCK_REALTIME\w*|gettimeofday|"
                         r"timespec_get|time\s*\(\s*(?:nullptr|NULL|0|&\w+)\s*\))")
MAY_TELL_IT = ("server/unix_time.h", "tokenizer/jinja/jinja_globals.cc")
NO_SOURCES = re.compile(r"build.*|\.git|\.venv|\.cache|__pycache__")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def functions_of(text):
    """First lines and lengths: a function begins at the margin, or one step in from it in a class, and ends with the
    next brace alone there. Blocks that pass for one are shorter than theirs."""
    for margin in ("", "  "):
        begin = None
        for number, line in enumerate(text.splitlines()):
            if re.match(margin + r"[\w\[~]", line):
                begin = number, line.strip()
            elif line == margin + "}" and begin:
                yield begin[1], number - begin[0] + 1
                begin = None


def place_within(parts):
    """Of a path below src/: 0 for what lies in its folder itself. None: in a folder that has no place in the order."""
    order = ORDER_WITHIN.get(parts[0])
    if order is None or len(parts) == 2:
        return 0
    return order.index(parts[1]) + 1 if parts[1] in order else None


def problems_of(path, parts, text):
    folder, place = parts[0], place_within(parts)
    if place is None:
        yield f"{path}: unknown folder {folder}/{parts[1]}"
        return
    is_test = path.stem.endswith(("_test", "_test_support"))
    for target in INCLUDE.findall(text):
        owner = target.split("/")[0]
        if owner not in ORDER:
            yield f'{path}: include "{target}" from src/, as "folder/file.h"'
        elif ORDER.index(owner) > ORDER.index(folder):
            yield f"{path}: {folder} may not include {owner} ({target})"
        elif owner == folder and not is_test and (place_within(target.split("/")) or 0) > place:
            yield f"{path}: {'/'.join(parts[:-1])} may not include {target.rpartition('/')[0]} ({target})"
    if text.count("\n") > MAX_LINES:
        yield f"{path}: {text.count(chr(10))} lines, {MAX_LINES} at most: its idea wants splitting"
    for name, num_lines in functions_of(text):
        if num_lines > MAX_FUNCTION_LINES and not path.stem.endswith("_test"):
            yield f"{path}: {num_lines} lines, {MAX_FUNCTION_LINES} at most: {name}"
    clock = TIME_OF_DAY.search(text)
    if clock and not str(path).endswith(MAY_TELL_IT):
        yield f"{path}: {clock[0]} may jump: steady_now_ns() or a Clock for times between, unix_time.h to tell it"
    if path.suffix == ".h" and "#pragma once" not in text:
        yield f"{path}: no #pragma once"


def mode_problems(root):
    """Documents run programs by their names: what begins with its interpreter can be run so, and nothing else can."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not NO_SOURCES.fullmatch(name))
        for path in (pathlib.Path(folder, name) for name in sorted(names)):
            if path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                has_interpreter = file.read(2) == b"#!"
            may_run = path.stat().st_mode & 0o111 != 0
            if has_interpreter and not may_run:
                yield f"{path}: begins with #! and is not executable: chmod +x"
            elif may_run and not has_interpreter:
                yield f"{path}: is executable and does not begin with #!: chmod -x"


def main():
    root = pathlib.Path(sys.argv[1]) / "src"
    files = [p for p in sorted(root.rglob("*")) if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    if not files:
        sys.exit(f"no sources under {root}")
    problems = list(mode_problems(root.parent))
    for path in files:
        parts = path.relative_to(root).parts
        if parts[0] not in ORDER:
            problems.append(f"{path}: unknown folder {parts[0]}")
            continue
        problems += problems_of(path, parts, path.read_text(encoding="utf-8"))
    print("\n".join(problems) or f"{len(files)} files in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
