"""tools/setup.sh, which ./run and ./test build by, with a program of one file in the place of Larder."""
import os
import pathlib
import shutil
import subprocess

import pytest

SETUP = pathlib.Path(__file__).parents[2] / "tools" / "setup.sh"
PRESETS = '{"version": 6, "configurePresets": [{"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build"}]}'
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(larder CXX)
find_program(LARDER_NVCC nvcc PATHS ENV PATH /usr/local/cuda/bin NO_DEFAULT_PATH)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/*.cc)
add_executable(larder ${sources})
set_target_properties(larder PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
"""


@pytest.fixture
def build(tmp_path):
    """Builds there, and returns what a person sees of it."""
    for name, text in (("CMakeLists.txt", PROJECT), ("CMakePresets.json", PRESETS), ("main.cc", "int main() {}\n")):
        (tmp_path / name).write_text(text)
    shutil.copy(SETUP, tmp_path)
    bin_folder = tmp_path / "bin"  # of all programs, but for nvcc
    bin_folder.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in pathlib.Path(folder).glob("*"):
            link = bin_folder / program.name
            if program.name != "nvcc" and not link.is_symlink():
                link.symlink_to(program)

    def run(*prefix, code=0):
        command = [*prefix, "bash", "-c", ". ./setup.sh; set -euo pipefail; build release larder"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300,
                                env={**os.environ, "PATH": str(bin_folder)})
        assert result.returncode == code, result.stderr
        return result.stdout + result.stderr

    run.folder = tmp_path
    return run


def test_it_says_what_it_does_and_nothing_where_nothing_is_to_do(build):
    first = build()
    assert "Configuring" in first and "Compiling larder" in first and "Linking CXX" in first
    assert build() == ""
    (build.folder / "more.cc").write_text("int more() { return 1; }\n")
    assert "Building CXX object CMakeFiles/larder.dir/more.cc.o" in build()
    assert build() == ""
    (build.folder / "more.cc").write_text("int more() { return nothing; }\n")
    assert "nothing" in build(code=1)


def test_what_another_user_has_built_is_taken_as_it_is(build):
    build()
    (build.folder / "main.cc").write_text("int main() { return 1; }\n")
    if os.getuid() == 0:
        build.folder.chmod(0o755)
        prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    else:
        (build.folder / "build").chmod(0o555)
        prefix = ()
    assert build(*prefix) == ""


def test_an_nvcc_that_comes_later_is_found(build):
    if shutil.which("nvcc", path="/usr/local/cuda/bin"):
        pytest.skip("there is one already")
    build()
    assert build() == ""
    nvcc = build.folder / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    assert "Configuring" in build()
    assert f"LARDER_NVCC:FILEPATH={nvcc}" in (build.folder / "build" / "CMakeCache.txt").read_text()
    assert build() == ""
