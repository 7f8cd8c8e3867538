"""The installed library as another project uses it: find_package and pkg-config, in a folder outside this tree."""
import os
import pathlib
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVILT_PROGRAM", ROOT / "build/release/kvilt")).resolve().parent
MODEL = ROOT / "tests/data/models/stories260K/derived-stories260K-F32.gguf"


def run(*command, **more):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **more)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    run("cmake", "--build", BUILD, "--target", "kvilt_archive")
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--component", "development", "--prefix", prefix)
    return prefix


def answers(program):
    first, second = run(program, MODEL).splitlines()
    assert " 0 reused" in first
    assert " 0 reused" not in second and "Tom and Lily" in second


def test_find_package_in_a_folder_outside_the_tree(prefix, tmp_path):
    source = shutil.copytree(ROOT / "examples/embed", tmp_path / "embed")
    run("cmake", "-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    answers(tmp_path / "build/embed")


def test_pkg_config_says_the_same(prefix, tmp_path):
    [pc] = prefix.rglob("kvilt.pc")
    flags = run("pkg-config", "--cflags", "--libs", "kvilt", env={**os.environ, "PKG_CONFIG_PATH": str(pc.parent)})
    run(os.environ.get("CXX", "c++"), ROOT / "examples/embed/main.cc", "-o", tmp_path / "embed", *shlex.split(flags))
    answers(tmp_path / "embed")


def test_the_public_headers_name_no_internal_ones(prefix):
    for header in sorted((prefix / "include/kvilt").glob("*.h")):
        for line in header.read_text().splitlines():
            assert not line.startswith('#include "') or line.startswith('#include "kvilt/'), f"{header.name}: {line}"
