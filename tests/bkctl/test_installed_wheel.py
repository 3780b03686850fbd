"""The wheel, installed: as a user without rights, with a home that cannot be written to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.bkctl.test_manual import page_names
from tests.processes import Cluster, bkctl_environment, free_port
from tests.test_repository import FLOORS, ROOT

pytestmark = pytest.mark.battery

NOBODY: Final = 65534
OTHERS: Final = ("storage", "runtime")
"""Packages of these names exist on PyPI."""
_AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
_READS_ALL: Final = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
"""For an interpreter below the home of root: it may read everything, and still write nothing."""


class InstalledBkctl:
    """A virtual environment with the wheel. If the tests run as root, its commands run as nobody."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir(mode=0o555)
        self.data = directory / "data"
        self.data.mkdir()
        source = directory / "source"
        source.mkdir()
        for name in (*FLOORS, "docs"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(ROOT) / name, source / name, symlinks=True, ignore=ignore)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(Path(ROOT) / name, source)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(directory), str(source))
        _run(sys.executable, "-m", "venv", "--without-pip", str(directory / "venv"))
        self.python = str(directory / "venv" / "bin" / "python")
        (packages,) = (directory / "venv" / "lib").glob("python*/site-packages")
        for name in OTHERS:
            (packages / name).mkdir()
            (packages / name / "__init__.py").write_text(f"OWNER = 'another {name}'\n")
        (wheel,) = directory.glob("*.whl")
        _run(*pip, "--python", self.python, "install", "--no-deps", "--no-index", str(wheel))
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.packages = packages
        self._prefix: tuple[str, ...] = ()
        if os.getuid() == 0:
            os.chown(self.data, NOBODY, NOBODY)
            self._prefix = _AS_NOBODY
            probe = [*_AS_NOBODY, self.python, "-c", "import msgspec"]
            if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
                self._prefix = (*_AS_NOBODY, *_READS_ALL)

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """A process in the read-only home."""
        environment = bkctl_environment(HOME=str(self.home), **variables)
        for name in ("BKCTL_CONFIG", "XDG_STATE_HOME"):
            environment.pop(name, None)
        return subprocess.Popen(
            [*self._prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self.home,
        )

    def bkctl(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process = self.start(self.command, *arguments, **variables)
        output, errors = process.communicate()
        return process.returncode, output, errors

    @property
    def command(self) -> str:
        """Path of the installed script."""
        return str(self.directory / "venv" / "bin" / "bkctl")


def _run(*command: str) -> None:
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def installed() -> Iterator[InstalledBkctl]:
    """Not below pytest's own directory, which only its user may enter."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield InstalledBkctl(Path(directory))


def test_it_works_without_a_writable_home(installed: InstalledBkctl, start_cluster: Callable[[int], Cluster]) -> None:
    process = installed.start(installed.python, "-c", "import bkctl, os; print(bkctl.__file__, os.getuid())")
    path, user = process.communicate()[0].split()
    assert path.startswith(str(installed.packages))
    assert int(user) == (NOBODY if os.getuid() == 0 else os.getuid())
    process = installed.start(installed.python, "-c", "open('file', 'w')")
    assert "PermissionError" in process.communicate()[1]

    cluster = start_cluster(1)
    uri = {"BKCTL_METADATA_URI": cluster.metadata_uri}
    exit_code, output, errors = installed.bkctl("bookie", "list", "-o", "name", **uri)
    assert (exit_code, output.split()) == (0, [cluster.bookies[0].id]), errors

    change = ("autorecovery", "disable", "--reason", "maintenance", "--yes")
    exit_code, _, errors = installed.bkctl(*change, **uri)
    assert exit_code != 0
    assert "nothing was changed" in errors
    assert "set BKCTL_STATE_DIR to another directory" in errors
    exit_code, _, errors = installed.bkctl(*change, **uri, BKCTL_STATE_DIR=str(installed.data / "state"))
    assert exit_code == 0, errors


def test_the_pages_are_installed(installed: InstalledBkctl) -> None:
    exit_code, page, errors = installed.bkctl("help", "lost-index")
    assert (exit_code, errors) == (0, "")
    assert page.startswith("# A lost index\n")
    for name in page_names(installed.bkctl("help")[1]):
        assert installed.bkctl("help", name)[0] == 0


def test_packages_of_others_stay_as_they_are(installed: InstalledBkctl) -> None:
    for name in OTHERS:
        assert [each.name for each in (installed.packages / name).iterdir()] == ["__init__.py"]
        code = f"import {name}, bkctl.{name}; print({name}.OWNER, bkctl.{name}.__file__)"
        owner, _, path = installed.start(installed.python, "-c", code).communicate()[0].rpartition(" ")
        assert owner == f"another {name}"
        assert path.strip() == str(installed.packages / "bkctl" / name / "__init__.py")


def test_a_bookie_starts_and_stops(installed: InstalledBkctl, metadata_uri: str) -> None:
    uri = {"BKCTL_METADATA_URI": metadata_uri, "BKCTL_STATE_DIR": str(installed.data / "state")}
    exit_code, _, errors = installed.bkctl("cluster", "init", **uri)
    assert exit_code == 0, errors
    bookie = installed.start(
        *(installed.command, "bookie", "start", "--port", str(free_port()), "--set", "allowLoopback=true"),
        *("--advertised-address", "127.0.0.1", "--set", "diskUsageThreshold=0.99"),
        *("--journal-dir", str(installed.data / "journal"), "--ledger-dir", str(installed.data / "ledgers")),
        **uri,
    )
    assert bookie.stderr is not None
    said = ""
    while " listening on port " not in said:
        line = bookie.stderr.readline()
        assert line, said
        said += line
    bookie.send_signal(signal.SIGTERM)
    _, errors = bookie.communicate()
    assert bookie.returncode == 0, said + errors
