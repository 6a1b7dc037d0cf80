"""bench/peers/run: sets up the peers, measures, and writes bench/RESULTS.md and bench/plots/."""
import argparse
import os
import pathlib
import re
import shlex
import sys
import time

from peers import engines, install, measure, models, process, report, stats

BENCH = pathlib.Path(__file__).resolve().parent.parent


def parse():
    p = argparse.ArgumentParser(prog="bench/peers/run", description="Larder beside llama.cpp, OpenVINO GenAI and vLLM on this "
                                "machine. Finished measurements are kept: the same command goes on where it was ended.")
    p.add_argument("--larder", default=str(BENCH.parent / "build" / "larder"))
    p.add_argument("--llama-bin", help="a folder with llama-bench and llama-server, instead of building them")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=2, help="of all but the longest measurements")
    p.add_argument("--minutes", type=float, default=55, help="no measurement starts later than that")
    p.add_argument("--quick", action="store_true", help="minutes only, to see that everything runs; prints its results")
    p.add_argument("--long", action="store_true", help="also 16,384 and 32,768 tokens of the 1B shape")
    p.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measurements whose name has one of these in it; "
                   "prints its results")
    p.add_argument("--engines", nargs="+", default=[], metavar="NAME", choices=[e.name for e in engines.ENGINES],
                   help="these alone; prints its results")
    p.add_argument("--list", action="store_true", help="the measurements, and stop")
    p.add_argument("--setup", action="store_true", help="set up the peers and the models, and stop")
    p.add_argument("--fresh", action="store_true", help="forget what this machine and this binary measured before")
    p.add_argument("--report", action="store_true", help="write what was measured before, and stop")
    p.add_argument("--goodput", nargs=2, type=float, metavar=("TTFT", "TPOT"), help="the limits that its requests keep, in ms "
                   f"(default: {stats.GOODPUT_LIMITS[0]} {stats.GOODPUT_LIMITS[1]})")
    p.add_argument("--out", type=pathlib.Path, help="where RESULTS.md and plots/ go (default: bench/ once all is measured; "
                   "else they are printed)")
    options = p.parse_args()
    options.asked = {name: value for name, value in vars(options).items() if value != p.get_default(name)}
    return options


def machine(options):
    with open("/proc/meminfo") as file:
        gib = int(file.readline().split()[1]) / 2**20
    return (f"Machine: {measure.cpu_name()}, {os.cpu_count()} cores, {gib:.0f} GiB; every engine has {options.threads} "
            f"threads; load before the run {os.getloadavg()[0]:.1f}.")


def command_of(options):
    """What was asked for, without the places of this machine."""
    words = ["bench/peers/run"]
    for name, value in options.asked.items():
        if name in ("quick", "long", "only", "engines", "goodput", "rounds", "threads"):
            values = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--{name}", *map(str, values)]
    return shlex.join(words)


def has_name(measurement, parts):
    """Whether one of the parts is in its name; serve-1 is not in serve-16."""
    return any(re.search(re.escape(part) + r"(?!\d)", measurement.name) for part in parts)


def find_models(todo, larder):
    """{name: Model} of those that are wanted and can be had, and {title: why not} of the others."""
    found, missing = {}, {}
    for model in models.MODELS:
        if any(m.model == model.name for m in todo):
            try:
                found[model.name] = models.find(model, larder)
            except install.Absent as error:
                missing[model.title] = str(error)
    return found, missing


def refusals_of(there, todo, found):
    """{(engine, reason): titles of the models}"""
    refusals = {}
    for engine in there:
        for name in dict.fromkeys(m.model for m in todo):
            reason = engine.refusal(found[name])
            if reason:
                refusals.setdefault((engine.name, reason), []).append(found[name].title)
    return refusals


def write(document, plots, folder):
    results = folder / "RESULTS.md"
    before = results.read_text() if results.exists() else "# Results\n"
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    for name, content in plots.items():
        (folder / "plots" / name).write_text(content)
    results.write_text(report.replace_section(before, document))
    print(f"{results} and {len(plots)} plots beside it")


def main():
    options = parse()
    process.end_with_servers()
    start = time.monotonic()
    machine_line = machine(options)
    every = measure.measurements(options.quick, options.long, options.rounds)
    todo = [m for m in every if not options.only or has_name(m, options.only)]
    if options.list:
        print("\n".join(f"{m.name}: {m.points}, {m.rounds} rounds" for m in todo))
        return
    if not pathlib.Path(options.larder).is_file():
        sys.exit(f"no {options.larder}: build it with ./run --help, or name it with --larder")
    install.PEERS.mkdir(parents=True, exist_ok=True)
    there, absent = engines.set_up(options, options.engines)
    for name, reason in absent.items():
        print(f"{name} is absent: {reason}", file=sys.stderr)
    found, missing = find_models(todo, options.larder)
    for title, reason in missing.items():
        print(f"{title} is absent: {reason}", file=sys.stderr)
    if options.setup:
        return
    if not there:
        sys.exit("no engine is there: nothing can be measured")
    todo = [m for m in todo if m.model in found]
    versions = {e.name: e.version() for e in there}
    store = measure.Store(options, versions)
    if options.fresh:
        store.clear()
    finished = options.report or measure.run(todo, there, found, store, start + options.minutes * 60)
    if not finished:
        print("time is up: the same command goes on from here", file=sys.stderr)
    rep = report.Report(store, todo, found, [e.name for e in engines.ENGINES],
                        options.goodput or stats.GOODPUT_LIMITS)
    told = {name: " of ".join(filter(None, [version, engines.commit_of(options.larder) if name == "Larder" else ""]))
            for name, version in versions.items()}
    facts = report.facts_of(command_of(options), machine_line, told)
    document = rep.section(facts, {**absent, **missing}, refusals_of(there, todo, found))
    # Less than all does not take the place of all that stands there.
    is_whole = finished and measure.is_whole(todo, there, found, store)
    is_part = options.quick or options.only or options.engines or missing or not is_whole
    if is_part and not options.out:
        print(document)
    else:
        write(document, rep.plots(), options.out or BENCH)


if __name__ == "__main__":
    main()
