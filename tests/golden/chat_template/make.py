#!/usr/bin/env python3
"""Renders the golden cases with the reference: transformers' sandboxed Jinja.

    make.py     needs transformers and jinja2; writes conversations.json, expected/NAME.json, language.json

conversations.json: input name -> input. expected/NAME.json, for templates/NAME.jinja: input name ->
{"expected": text} or {"error": why}. language.json: [{"template", "expected" or "error"}], all of them with
VARIABLES as extra variables. The clock stands at NOW, in UTC.
"""
import datetime
import json
import logging
import os
import pathlib
import sys

import transformers.utils.chat_template_utils as reference

import conversations
import language

NOW = 1_700_000_000
HERE = pathlib.Path(__file__).parent


class FrozenClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


def render(template, given):
    names = {"bos_token": given.get("bos_token", ""), "eos_token": given.get("eos_token", "")}
    names.update(given.get("extra") or {})
    try:
        texts, _ = reference.render_jinja_template(
            [given.get("messages", [])], tools=given.get("tools"), chat_template=template,
            add_generation_prompt=given.get("add_generation_prompt", True), **names)
    except Exception as error:  # whatever the template raised is the answer
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"expected": texts[0]}


def write(name, value):
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def main():
    logging.disable(logging.WARNING)
    os.environ["TZ"] = "UTC"
    reference.datetime = FrozenClock
    inputs = conversations.inputs()
    write("conversations.json", inputs)
    num_cases = num_errors = 0
    for path in sorted((HERE / "templates").glob("*.jinja")):
        with open(path, encoding="utf-8", newline="") as file:
            template = file.read()
        answers = {name: render(template, given) for name, given in inputs.items()}
        write(f"expected/{path.stem}.json", answers)
        num_cases += len(answers)
        num_errors += sum("error" in answer for answer in answers.values())
    cases = []
    for template in language.CASES:
        answer = render(template, {"extra": language.VARIABLES})
        if " at 0x" in str(answer):
            sys.exit(f"not reproducible: {template}")
        cases.append({"template": template, **answer})
    write("language.json", {"variables": language.VARIABLES, "cases": cases})
    print(num_cases, "renderings,", num_errors, "raise;", len(cases), "language cases,",
          sum("error" in case for case in cases), "raise")


if __name__ == "__main__":
    main()
