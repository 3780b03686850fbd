"""The guide to a cluster with TLS and logins, typed: from certificates to a finished drain."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.bookie.admin_bookie import wait_said
from tests.processes import COMMAND_TIMEOUT_S, BkctlProcess, bkctl_environment, free_port, kill_and_wait, start_bkctl
from tests.test_repository import read
from tests.test_run_a_bookie import blocks

PAGE = "docs/guide/secure-a-cluster.md"
BOOKIES = (1, 2, 3, 4)
INIT = "bkctl cluster init"
"""Before it the files of the bookies are complete, and after it the bookies start."""


class SecuredHosts:
    """What the page is tried on: each bookie has a directory and a loopback address of its own."""

    def __init__(self, directory: Path, metadata_uri: str) -> None:
        self._directory = directory
        self._metadata_uri = metadata_uri
        self._ports = {number: (free_port(), free_port()) for number in BOOKIES}
        self._home = directory / "srv" / "operator"
        self._home.mkdir(parents=True)
        for number in BOOKIES:
            self._etc(number).mkdir(parents=True)
        self._bookies: list[BkctlProcess] = []

    def _etc(self, number: int) -> Path:
        return self._directory / f"bookie{number}" / "etc"

    def _here(self, text: str) -> str:
        """The text of the page with the names of this test."""
        for number in BOOKIES:
            name, address = f"bookie{number}.example.com", f"127.0.0.{number}"
            text = text.replace(f"{name}:/etc/bookkeeper", str(self._etc(number)))
            text = text.replace(f"{name}:3181", f"{address}:{self._ports[number][0]}").replace(name, address)
        text = text.replace("zk+hierarchical://zk1:2181;zk2:2181;zk3:2181/ledgers", self._metadata_uri)
        return text.replace("/srv/operator", str(self._home))

    def configure(self, language: str, text: str) -> None:
        """Write the settings of the page: the users, then the file of each bookie, then that of the operators."""
        if language == "jaas":
            for number in BOOKIES:
                self._write_private(self._etc(number) / "jaas.conf", text)
                self._write_private(self._etc(number) / "password", "a password of the bookies\n")
            self._write_private(self._home / "certificates" / "password", "a password of the operators\n")
        elif "[bookie]" in text:
            for number in BOOKIES:
                port, http_port = map(str, self._ports[number])
                own = self._here(text.replace("bookie1.example.com", f"bookie{number}.example.com"))
                own = own.replace("port = 3181", f"port = {port}\nis_loopback_allowed = true").replace(
                    "8080", http_port
                )
                own = own.replace("/etc/bookkeeper", str(self._etc(number)))
                data = self._directory / f"bookie{number}" / "data"
                (self._etc(number) / "bookie.toml").write_text(own.replace("/var/lib/bookkeeper", str(data)))
        else:
            path = self._home / ".config" / "bkctl" / "config.toml"
            path.parent.mkdir(parents=True)
            path.write_text(self._here(text))

    def run(self, text: str) -> None:
        """Run a block as a user would type it, in the home of the operator; scp copies on this machine."""
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
        block = self._here(text).replace("/etc/bookkeeper", str(self._etc(1)))
        environment = bkctl_environment(PATH=path, HOME=str(self._home))
        for name in ("BKCTL_CONFIG", "XDG_CONFIG_HOME"):  # the page has a file at its usual place
            environment.pop(name, None)
        finished = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f'scp() {{ cp "$@"; }}\n{block}'],
            cwd=self._home,
            capture_output=True,
            text=True,
            env=environment,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert finished.returncode == 0, f"{block}\n{finished.stdout}\n{finished.stderr}\n{self._logs()}"

    def start(self) -> None:
        """Start the bookies with the files of the page."""
        for number in BOOKIES:
            log = self._etc(number) / "log"
            with log.open("wb") as output:
                config = str(self._etc(number) / "bookie.toml")
                self._bookies.append(start_bkctl("bookie", "start", "--config", config, stderr=output))
            wait_said(log, "listening on port", self._bookies[-1])

    def stop(self) -> None:
        """End the bookies."""
        for each in self._bookies:
            with contextlib.suppress(ProcessLookupError):
                kill_and_wait(each.pid)
            each.wait(COMMAND_TIMEOUT_S)

    def _logs(self) -> str:
        paths = [self._etc(number) / "log" for number in BOOKIES]
        return "\n".join(path.read_text()[-4000:] for path in paths if path.exists())

    @staticmethod
    def _write_private(path: Path, text: str) -> None:
        path.touch(0o600)
        path.write_text(text)


@pytest.fixture
def hosts(tmp_path: Path, metadata_uri: str) -> Iterator[SecuredHosts]:
    made = SecuredHosts(tmp_path, metadata_uri)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.battery
@pytest.mark.cluster
def test_the_commands_of_the_page_run_one_after_another(hosts: SecuredHosts) -> None:
    ran: list[str] = []
    for language, text in blocks(read(PAGE)):
        if language:
            hosts.configure(language, text)
        else:
            hosts.run(text)
            ran += re.findall(r"^bkctl (\w+ ?[\w-]*)", text, re.MULTILINE)
            if INIT in text:
                hosts.start()
    assert {"tls init", "tls check", "cluster init", "bookie sanity", "bookie drain"} <= set(ran)
