"""Whether what tests/gpu/run links is whole: no object of its sources misses a function or variable of Larder's
that none of the others has. Takes the objects that the build has made of the same sources.

check_sources.py BUILD
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def objects_of(build, source):
    name = source.name if source.suffix else f"{source.name}.cc"
    found = [path for path in build.glob(f"src/**/{name}.o") if source.parent.name in str(path)]
    if source.parent.name == "cpu":
        found = [path for path in found if "larder_kernels_generic.dir" in str(path)]
    return found[:1]


def symbols(objects, kind):
    lines = subprocess.run(["nm", "-C", f"--{kind}-only", *map(str, objects)], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return {line.split(maxsplit=1)[1] if kind == "undefined" else line.split(maxsplit=2)[2]
            for line in lines if " larder::" in line}


def main():
    build = pathlib.Path(sys.argv[1])
    listed = subprocess.run([ROOT / "tests/gpu/run", "--sources"], check=True, capture_output=True, text=True).stdout
    sources = [pathlib.Path(line) for line in listed.split() if not line.startswith("tests/")]
    objects = [path for source in sources for path in objects_of(build, source)]
    if len(objects) != len(sources):
        sys.exit(f"{len(sources)} sources, but {len(objects)} objects in {build}")
    missing = symbols(objects, "undefined") - symbols(objects, "defined")
    for symbol in sorted(missing):
        print(f"tests/gpu/run compiles nothing that defines {symbol}")
    sys.exit(1 if missing else 0)


main()
