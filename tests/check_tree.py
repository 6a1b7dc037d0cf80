#!/usr/bin/env python3
"""Holds the tree to its own rules: the order of includes between folders, and the sizes of files.

check_tree.py ROOT
"""
import pathlib
import re
import sys

# Each folder may include only itself and those before it.
ORDER = "base kernels kv tokenizer model plan engine server cli".split()
MAX_LINES = 600
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def problems_of(path, folder, text):
    for target in INCLUDE.findall(text):
        owner = target.split("/")[0]
        if owner not in ORDER:
            yield f'{path}: include "{target}" from src/, as "folder/file.h"'
        elif ORDER.index(owner) > ORDER.index(folder):
            yield f"{path}: {folder} may not include {owner} ({target})"
    if text.count("\n") > MAX_LINES:
        yield f"{path}: {text.count(chr(10))} lines, {MAX_LINES} at most: its idea wants splitting"
    if path.suffix == ".h" and "#pragma once" not in text:
        yield f"{path}: no #pragma once"


def main():
    root = pathlib.Path(sys.argv[1]) / "src"
    files = [p for p in sorted(root.rglob("*")) if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    if not files:
        sys.exit(f"no sources under {root}")
    problems = []
    for path in files:
        folder = path.relative_to(root).parts[0]
        if folder not in ORDER:
            problems.append(f"{path}: unknown folder {folder}")
            continue
        problems += problems_of(path, folder, path.read_text(encoding="utf-8"))
    print("\n".join(problems) or f"{len(files)} files in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
