"""Runs the steps of a Dockerfile where no container engine is: each stage has a root directory of its own.

The base image is replaced by this machine: its programs and this Python are mounted read-only in a mount namespace that
only the step has, and the step runs with the stage as its root. What the steps write is written there.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

BASE = "python:3.12-slim"
_LINKS = ("bin", "sbin", "lib", "lib64")
_MOUNTED = ("/usr", "/dev", "/etc/ssl", sys.base_prefix)
_COPIED = ("passwd", "group", "shadow", "login.defs", "nsswitch.conf", "hosts", "resolv.conf", "pip.conf")
"""Files in /etc that are there in the base image, or that an engine or the machine's pip needs."""
_PROGRAMS = "/programs"
_PATH = f"{_PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED = re.compile(r"PIP_(?!FIND_LINKS)|SSL_CERT_|https?_proxy$|no_proxy$", re.IGNORECASE)
"""Variables of this machine by which pip reaches its registry."""

_ENTER = """
root=$1; shift
while [ "$1" != -- ]; do mount --bind -o ro "$1" "$root$1"; shift; done; shift
exec "$@"
"""
_NAMESPACE = ("unshare", "--mount", "sh", "-ec", _ENTER, "sh")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Name and arguments of each instruction."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            yield name.upper(), " ".join(arguments.split())


def ignored_names(text: str) -> list[str]:
    """Patterns of a ``.dockerignore``; those used here name a directory at the top, or with ``**/`` at any depth."""
    patterns = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert all(re.fullmatch(r"(\*\*/)?[^/!]+", pattern) for pattern in patterns), patterns
    return patterns


class Stage:
    """The file system of one stage, and what its instructions have set so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": _PATH}
        self.directory, self.user, self.entrypoint = "/", "0:0", list[str]()
        for name in ("etc", "tmp", _PROGRAMS[1:], *(path[1:] for path in _MOUNTED)):
            (root / name).mkdir(parents=True, exist_ok=True)
        os.chmod(root / "tmp", 0o1777)
        for name in _LINKS:
            os.symlink(f"usr/{name}", root / name)
        for name in _COPIED:
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", root / "etc" / name)
        os.symlink(f"{sys.base_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}", root / "programs/python")

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program with this root, as the stage's user."""
        passed = {name: value for name, value in os.environ.items() if _PASSED.match(name)}
        environment = passed | self.environment | variables
        assignments = [f"{name}={value}" for name, value in environment.items()]
        enter = ["chroot", f"--userspec={self.user}", str(self.root), "/usr/bin/env", "-i", "-C", self.directory]
        return subprocess.run(
            [*_NAMESPACE, str(self.root), *_MOUNTED, "--", *enter, *assignments, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def path(self, name: str) -> Path:
        """Where a path of the stage is on this machine."""
        return self.root / os.path.join(self.directory, name)[1:]


class ContainerBuild:
    """The stages of a Dockerfile, built one after the other."""

    def __init__(self, context: Path, directory: Path) -> None:
        self._context, self._directory = context, directory
        self._ignored = ignored_names((context / ".dockerignore").read_text())
        self.stages: dict[str, Stage] = {}
        self.commands = 0
        for name, arguments in instructions((context / "Dockerfile").read_text()):
            getattr(self, f"_{name.lower()}")(arguments)

    @property
    def image(self) -> Stage:
        """The last stage."""
        return list(self.stages.values())[-1]

    def _from(self, arguments: str) -> None:
        base, _, name = arguments.partition(" AS ")
        assert base == BASE
        root = self._directory / (name or "image")
        root.mkdir()
        self.stages[name] = Stage(root)

    def _workdir(self, arguments: str) -> None:
        self.image.directory = arguments
        self.image.path(".").mkdir(parents=True)

    def _env(self, arguments: str) -> None:
        for each in shlex.split(arguments):
            name, _, value = each.partition("=")
            self.image.environment[name] = value.replace("$PATH", self.image.environment["PATH"])

    def _user(self, arguments: str) -> None:
        self.image.user = arguments

    def _entrypoint(self, arguments: str) -> None:
        self.image.entrypoint = json.loads(arguments)

    def _copy(self, arguments: str) -> None:
        *sources, target = arguments.split()
        to = self.image.path(target)
        if sources[0].startswith("--from="):
            stage, (source,) = self.stages[sources[0].removeprefix("--from=")], sources[1:]
            shutil.copytree(stage.path(source), to, symlinks=True)
        elif sources == ["."]:
            shutil.copytree(self._context, to, symlinks=True, ignore=self._ignore, dirs_exist_ok=True)
        else:
            for source in sources:
                assert not self._ignore(str(self._context), [source])
                shutil.copy(self._context / source, to)

    def _ignore(self, directory: str, names: Sequence[str]) -> set[str]:
        is_top = Path(directory) == self._context
        patterns = [each.removeprefix("**/") for each in self._ignored if is_top or each.startswith("**/")]
        return {name for name in names for pattern in patterns if fnmatch.fnmatchcase(name, pattern)}

    def _run(self, arguments: str) -> None:
        done = self.image.run("/bin/sh", "-c", arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        self.commands += 1
