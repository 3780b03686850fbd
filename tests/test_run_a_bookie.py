"""The guide to running a bookie, typed: its settings, its commands in order, its probes, its alerts."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bkctl.runtime.autorecovery.metrics import catalogue_of
from bkctl.runtime.bookie.metrics.catalogue import CATALOGUE
from tests.processes import COMMAND_TIMEOUT_S, BkctlProcess, bkctl_environment, free_port, start_bkctl
from tests.service_manager import NotifySocket
from tests.test_repository import ROOT, read

PAGE = "docs/guide/run-a-bookie.md"
ROOT_ONLY = re.compile(r"^(apt|systemctl|useradd|python3 -m venv) ", re.MULTILINE)
"""Commands that change the machine. The test starts what the unit starts, as systemctl would."""
ASKS = re.compile(r"^bkctl bookie (set-mode read-only|stop|index rebuild).*", re.MULTILINE)
"""Commands that ask, which a test without a terminal cannot answer."""
START = re.compile(r"^systemctl .*\b(start|enable --now)\b", re.MULTILINE)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of each code block, in order."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


class PageHost:
    """What the page is tried on: its names stand for directories, ports and a cluster of this test."""

    def __init__(self, directory: Path, metadata_uri: str) -> None:
        self._directory = directory
        self._names = {
            "/etc/bookkeeper": str(directory / "etc"),
            "/var/lib/bookkeeper": str(directory / "data"),
            "zk+hierarchical://zk1:2181;zk2:2181;zk3:2181/ledgers": metadata_uri,
            "bookie1.example.com": "127.0.0.1",
            "3181": str(free_port()),
            "8080": str(free_port()),
        }
        self._exports = ""
        self.bookie: BkctlProcess | None = None
        for name in ("etc", "data"):
            (directory / name).mkdir()

    def here(self, text: str) -> str:
        """The text with the names of this test."""
        for name, value in self._names.items():
            text = text.replace(name, value)
        return text

    def configure(self, text: str) -> None:
        """Write the settings file of the page."""
        (self._directory / "etc" / "bk_server.conf").write_text(self.here(text) + "allowLoopback=true\n")

    def run(self, text: str) -> None:
        """Run a block as a user would type it, with what former blocks exported."""
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
        block = ASKS.sub(r"\g<0> --yes", self.here(text))
        finished = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._exports + block],
            cwd=self._directory,
            capture_output=True,
            text=True,
            env=bkctl_environment(PATH=path),
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert finished.returncode == 0, f"{block}\n{finished.stdout}\n{finished.stderr}"
        self._exports += "".join(re.findall(r"^export .*\n", block, re.MULTILINE))

    def run_elsewhere(self, text: str) -> None:
        """Run a block that makes the bookie writable as on another machine, which has no socket of it."""
        self.run("bkctl bookie set-mode read-only\n")
        socket, away = self._directory / "data/ledgers/bkctl.admin.sock", self._directory / "away"
        socket.rename(away)
        self.run(text)
        away.rename(socket)

    def start(self) -> None:
        """Start what the sample unit starts, as systemctl does; the bookie of a former start has stopped."""
        if self.bookie is not None:
            assert self.bookie.wait(COMMAND_TIMEOUT_S) == 0
        unit = configparser.RawConfigParser(strict=False)
        unit.read(os.path.join(ROOT, "docs/examples/bkctl-bookie.service"))
        program, *arguments = shlex.split(self.here(unit["Service"]["ExecStart"]))
        assert os.path.basename(program) == "bkctl"
        path = self._directory / "notify"
        path.unlink(missing_ok=True)
        with NotifySocket(path) as manager, (self._directory / "bookie.log").open("ab") as log:
            self.bookie = start_bkctl(*arguments, stderr=log, variables={"NOTIFY_SOCKET": manager.name})
            manager.receive_until("READY")

    def get(self, path: str) -> bytes:
        """The answer of the admin port."""
        with urllib.request.urlopen(self.here(f"http://bookie1.example.com:8080{path}")) as answer:
            body: bytes = answer.read()
            return body

    def stop(self) -> None:
        """End the bookie."""
        if self.bookie is not None:
            self.bookie.kill()
            self.bookie.wait(COMMAND_TIMEOUT_S)


@pytest.fixture
def host(tmp_path: Path, metadata_uri: str) -> Iterator[PageHost]:
    made = PageHost(tmp_path, metadata_uri)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.battery
@pytest.mark.cluster
def test_the_commands_of_the_page_run_one_after_another(host: PageHost) -> None:
    probed, ran = [], 0
    for language, text in blocks(read(PAGE)):
        if language == "properties":
            host.configure(text)
        elif language == "yaml":
            for path in paths_in(yaml.safe_load(text)):
                assert host.get(path)
                probed.append(path)
        elif START.search(text):
            host.start()
        elif "BKCTL_ADMIN_TOKEN_FILE" in text:
            host.run_elsewhere(text)
        elif not ROOT_ONLY.search(text):
            host.run(text)
            ran += 1
    assert {"/metrics", "/heartbeat", "/api/v1/bookie/is_ready"} <= set(probed)
    assert ran > 5


def paths_in(document: Any) -> Iterator[str]:
    """Paths that a scraper or a probe of this configuration asks for."""
    if isinstance(document, dict):
        if "scrape_configs" in document:
            yield "/metrics"
        if "httpGet" in document:
            yield document["httpGet"]["path"]
        for value in document.values():
            yield from paths_in(value)


@pytest.mark.parametrize("file_name", ["bookie-alerts.yml", "autorecovery-alerts.yml"])
def test_each_alert_is_in_the_index_by_symptom_and_its_metrics_exist(file_name: str) -> None:
    rules = [rule for group in yaml.safe_load(read(f"docs/examples/{file_name}"))["groups"] for rule in group["rules"]]
    assert len(rules) > 5
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in read("docs/runbooks/by-symptom.md")] == []
    names = {metric.name for metric in (*CATALOGUE, *catalogue_of(lambda: 0))}
    names |= {f"{name}{suffix}" for name in names for suffix in ("_count", "_sum")}
    used = {name for rule in rules for name in re.findall(r"\b(?:bookie|bookkeeper|bkctl)_\w+", rule["expr"])}
    assert used - names == set()
