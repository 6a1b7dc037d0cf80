#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_ranges.inc: the character classes of the pre-tokenizers' patterns.

The classes are asked of the `tokenizers` package itself (its regex engine for \\p{L}, \\p{N}, \\s,
\\p{P}, \\p{S} and the letters' cases; its Digits step for "numeric"), so that a new letter means here what it means there,
whatever Unicode version this machine's libraries have.

    make_unicode.py > src/tokenizer/unicode_ranges.inc
"""

import importlib.metadata

from tokenizers import Regex, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matching(pattern):
    step = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    return {c for c in CODE_POINTS if not step.pre_tokenize_str(chr(c))}


def digits():
    step = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in CODE_POINTS if len(step.pre_tokenize_str("a" + chr(c))) == 2}


def main():
    classes = [
        matching(r"\p{L}"),
        matching(r"\p{N}"),
        matching(r"\s"),
        matching(r"\p{P}"),
        digits(),
        matching(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
        matching(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
        matching(r"\p{S}"),
    ]
    flags = [
        sum(1 << bit for bit, members in enumerate(classes) if c in members)
        for c in range(0x110000)
    ]
    ranges, first = [], 0
    for c in range(1, 0x110001):
        if c == 0x110000 or flags[c] != flags[first]:
            if flags[first]:
                ranges.append(f"{{{first:#x}, {c - 1:#x}, {flags[first]}}},")
            first = c
    print(
        "// Made by tests/golden/tokenizer/make_unicode.py from tokenizers "
        f"{importlib.metadata.version('tokenizers')}: {{first, last, CharClass bits}}."
    )
    line = ""
    for item in ranges:
        if len(line) + 1 + len(item) > 120:
            print(line)
            line = ""
        line += (" " if line else "") + item
    print(line)


main()
