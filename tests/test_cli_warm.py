"""`cbeindex warm` and `cbeindex info --cache`, in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from cbeindex.cli import main
from cbeindex.kernels import target
from tests.conftest import COMPILED


def cbeindex(*arguments, **variables):
    """Run the command line; return its exit code and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "cbeindex", *arguments],
        env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


# Runs some code, and prints the names of the files that it looks for its kernels in.
RECORD = """
import sys
from cbeindex.kernels import caching

names, load = set(), caching.KernelCache.load_overload

def load_overload(self, signature, context):
    names.add(self.file_name(signature, caching.compiled_target()))
    return load(self, signature, context)

caching.KernelCache.load_overload = load_overload
exec(sys.argv[1])
print("kernels:", *names)
"""


def kernels_of(code):
    """The kernels that some code uses, compiled or from the common cache."""
    done = subprocess.run([sys.executable, "-c", RECORD, code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache with the kernels of one kind of index."""
    path = tmp_path_factory.mktemp("cache")
    code, printed = cbeindex("warm", "scan", NUMBA_CACHE_DIR=str(path))
    assert code == 0, printed
    (folder,) = path.iterdir()
    assert printed.startswith(f"scan ...\n{folder}: ")
    return path


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_warm_has_all_kernels_of_the_quickstart():
    """So that it compiles nothing. `make test-wheel` compiles with an empty cache, which takes a minute."""
    used = kernels_of("from benchmarks import uses; list(uses.quickstart())")
    assert used
    assert used <= kernels_of("from cbeindex.cli import main; main(['warm', 'default'])")


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_info_lists_the_cache(cache):
    (folder,) = cache.iterdir()
    code, printed = cbeindex("info", "--cache", "--json", NUMBA_CACHE_DIR=str(cache))
    about = json.loads(printed)
    assert (code, about["written"], list(about["folders"])[1:]) == (0, str(folder), [str(folder)])
    files = about["folders"][str(folder)]
    assert {f"{name}.nbc": n_bytes for name, n_bytes in files.items()} == {
        path.name: path.stat().st_size for path in folder.glob("*.nbc")
    }
    assert any(name.startswith("transform.transform_rows.") for name in files)
    code, printed = cbeindex("info", "--cache", NUMBA_CACHE_DIR=str(cache))
    assert code == 0
    assert f"{folder}: {len(files)} kernels, " in printed
    assert printed.endswith(f"new kernels go to {folder}\n")


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_a_folder_for_others_has_code_for_levels_of_processors_and_says_which(tmp_path):
    folder, level = tmp_path / "compiled", target.compiled_target().levels()[-1]
    options = ["--into", str(folder), "--levels", level]
    code, printed = cbeindex("warm", "scan", *options, NUMBA_CACHE_DIR=str(tmp_path / "other"))
    assert code == 0, printed
    assert printed.startswith(f"{level}:\nscan ...\n{folder}: ")
    (path,) = folder.glob("target-*.json")
    made = json.loads(path.read_text())
    assert set(made) == {"triple", "cpu", "features"}
    cpu, features = target.LEVELS[level]
    assert (made["cpu"], set(made["features"])) == (cpu, set(features))
    assert target.compiled_target().runs(target.Target.named(made["triple"], cpu, frozenset(features)))
    assert list(folder.glob("*.nbc"))
    assert not (tmp_path / "other").exists()


def test_without_a_folder_nothing_is_compiled_in_vain(tmp_path):
    (tmp_path / "file").touch()
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache")}
    code, printed = cbeindex("warm", **variables)
    assert code == 2
    assert printed.startswith(f"cbeindex: error: cannot write to {tmp_path}")
    assert printed.endswith("set NUMBA_CACHE_DIR to a folder that can be written to\n")
    code, printed = cbeindex("info", "--cache", **variables)
    assert code == 0
    assert printed.endswith("new kernels are not kept: no folder can be written to\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["warm", "scan", "cell"],
            "KIND must be one of default, scan, vectors, cells, graph, clusters, substrings, sparse, ",
        ),
        (["warm", "--levels", "all"], "--levels must be given with --into"),
        (["warm", "--into", "here", "--levels", "x86-64-v9"], "--levels must be all, best, or some that run on this"),
        (["info"], "info must be given either FILE or --cache"),
        (["info", "--cache", "index.cbe"], "info must be given either FILE or --cache"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"cbeindex: error: {message}")
