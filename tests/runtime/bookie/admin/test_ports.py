"""The TCP ports of a bookie's admin interface, its token file, and its unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from bkctl.runtime.bookie.admin.interface import socket_path
from bkctl.runtime.bookie.boot.process import real_ports, running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.config import PROMETHEUS_PROVIDER, AdminConfig, BookieConfig, ZooKeeperConfig
from bkctl.runtime.errors import ConfigurationError, PortInUseError
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import OsHost
from tests.runtime.bookie.admin.asking import local_asker, tcp_asker

READ_ONLY = "/api/v1/bookie/state/readonly"


def with_admin(config: BookieConfig, **settings: object) -> BookieConfig:
    return msgspec.structs.replace(config, admin=AdminConfig(**settings))  # type: ignore[arg-type]


@pytest.fixture
def at_end() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("s3cret\n")
    return path


class NotingHost(OsHost):
    """Notes which thread asks the name service for the name of this machine."""

    def __init__(self) -> None:
        self.asked_in: list[str] = []

    def canonical_name(self) -> str:
        self.asked_in.append(threading.current_thread().name)
        return super().canonical_name()


@pytest.mark.parametrize(
    "way", [{"is_http_enabled": True, "http_port": 0}, {"is_scrape_port_enabled": True, "scrape_port": 0}]
)
async def test_a_slow_name_service_does_not_stop_the_event_loop(
    bookie_config: BookieConfig, way: dict[str, object]
) -> None:
    config, host = with_admin(bookie_config, **way), NotingHost()
    async with running_bookie(config, dataclasses.replace(real_ports(), host=host)):
        assert host.asked_in
        assert threading.current_thread().name not in host.asked_in


async def test_over_tcp_a_change_needs_the_token_and_a_look_does_not(
    bookie_config: BookieConfig, token_file: Path, store: ZooKeeperStore
) -> None:
    config = with_admin(bookie_config, is_http_enabled=True, http_port=0, token_file=str(token_file))
    async with running_bookie(config) as server:
        assert server.view.http_port is not None
        async with tcp_asker(server.view.http_port) as remote, local_asker(config) as local:
            assert (await remote.get("/api/v1/bookie/is_ready")).status == 200
            assert (await remote.get("/metrics")).status == 200
            for method, path in (
                ("PUT", READ_ONLY),
                ("PUT", "/api/v1/bkctl/mode"),
                ("PUT", "/api/v1/bookie/gc"),
                ("PUT", "/api/v1/bookie/gc/suspend_compaction"),
                ("PUT", "/api/v1/bookie/gc/resume_compaction"),
                ("PUT", "/api/v1/bkctl/gc/confirm"),
                ("GET", "/api/v1/bookie/sanity"),
                ("POST", "/api/v1/bkctl/stop"),
                ("PUT", "/api/v1/bkctl/log-level"),
            ):
                assert (await remote.ask(method, path, '{"readOnly": true}')).status == 401, path
            assert (await remote.put(READ_ONLY, {"readOnly": True}, token="wrong")).status == 401
            assert (await local.get(READ_ONLY)).json == {"readOnly": False}
            assert (await remote.put(READ_ONLY, {"readOnly": True}, token="s3cret")).json == {"readOnly": True}
            assert (await local.put(READ_ONLY, {"readOnly": False})).json == {"readOnly": False}
            registrations = RegistrationClient(store, parse_metadata_uri(config.metadata_uri).root)
            published = (await registrations.service_info(server.bookie_id)).http_address
            assert published is not None
            assert (published.host, published.port) == ("127.0.0.1", server.view.http_port)


async def test_every_address_is_published_as_the_bookie_s_own(
    bookie_config: BookieConfig, store: ZooKeeperStore
) -> None:
    config = with_admin(bookie_config, is_http_enabled=True, http_port=0, http_host="0.0.0.0")
    async with running_bookie(config) as server:
        registrations = RegistrationClient(store, parse_metadata_uri(config.metadata_uri).root)
        published = (await registrations.service_info(server.bookie_id)).http_address
        assert published is not None
        assert published.host == "127.0.0.1"
        async with tcp_asker(published.port) as remote:
            assert (await remote.put(READ_ONLY, {"readOnly": True}, token="any")).status == 403


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (None, 0o600, "No such file"),
        ("", 0o600, "is empty"),
        (" \n", 0o600, "is empty"),
        ("two\nlines", 0o600, "is not one line"),
        ("x" * 5000, 0o600, "is not one line"),
        ("s3cret", 0o604, "chmod o="),
    ],
)
async def test_a_token_file_that_cannot_be_used_refuses_the_start(
    bookie_config: BookieConfig, tmp_path: Path, content: str | None, mode: int, reason: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    config = with_admin(bookie_config, is_http_enabled=True, http_port=0, token_file=str(path))
    with pytest.raises(ConfigurationError, match=r"adminTokenFile.*") as raised:
        async with running_bookie(config):
            pass
    assert reason in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({}, False),
        ({"metrics_provider": PROMETHEUS_PROVIDER}, True),
        ({"metrics_provider": "org.apache.bookkeeper.stats.codahale.CodahaleMetricsProvider"}, False),
        ({"metrics_provider": PROMETHEUS_PROVIDER, "is_scrape_port_enabled": False}, False),
        ({"is_scrape_port_enabled": True}, True),
        ({"is_scrape_port_enabled": True, "is_http_enabled": True}, False),
    ],
)
def test_when_there_is_a_scrape_port(settings: dict[str, object], is_open: bool) -> None:
    assert AdminConfig(**settings).has_scrape_port is is_open  # type: ignore[arg-type]


def test_the_scrape_port_listens_where_that_of_java_does() -> None:
    """Prometheus reaches it from other machines; it changes nothing. The admin port stays on this machine."""
    config = AdminConfig(metrics_provider=PROMETHEUS_PROVIDER)
    assert (config.scrape_host, config.scrape_port) == ("0.0.0.0", 8000)
    assert config.http_host == "127.0.0.1"


async def test_the_scrape_port_serves_metrics_and_heartbeat_alone(bookie_config: BookieConfig) -> None:
    config = with_admin(bookie_config, metrics_provider=PROMETHEUS_PROVIDER, scrape_port=0)
    async with running_bookie(config) as server:
        assert server.view.scrape_port is not None
        async with tcp_asker(server.view.scrape_port) as scraper:
            assert "bookie_WRITE_BYTES" in (await scraper.get("/metrics")).text
            assert (await scraper.get("/heartbeat")).text == "OK\n"
            assert (await scraper.get("/api/v1/bookie/state")).status == 404
            assert (await scraper.put(READ_ONLY, {"readOnly": True})).status == 404


@pytest.mark.parametrize("kind", ["http", "scrape"])
async def test_a_port_in_use_refuses_the_start_before_anything_is_written(
    bookie_config: BookieConfig, kind: str, store: ZooKeeperStore
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings: dict[str, object] = (
            {"is_http_enabled": True, "http_port": port}
            if kind == "http"
            else {"is_scrape_port_enabled": True, "scrape_port": port}
        )
        key = "httpServerPort" if kind == "http" else "prometheusStatsHttpPort"
        with pytest.raises(PortInUseError, match=f"{port} is in use by process {os.getpid()} .*{key}"):
            async with running_bookie(with_admin(bookie_config, **settings)):
                pass
    assert not any(map(os.path.lexists, bookie_config.storage.all_directories))
    cookies = CookieStore(store, parse_metadata_uri(bookie_config.metadata_uri).root)
    assert await cookies.ids() == []


async def test_the_admin_port_answers_while_the_bookie_waits_for_zookeeper(bookie_config: BookieConfig) -> None:
    ports = real_ports()
    waiting = asyncio.Event()

    async def connect(servers: str, config: ZooKeeperConfig) -> MetadataStore:
        waiting.set()
        return await asyncio.Future()

    config = with_admin(bookie_config, is_http_enabled=True, http_port=0)
    server = BookieServer(config, dataclasses.replace(ports, connect_metadata=connect))
    starting = asyncio.ensure_future(server.__aenter__())
    try:
        await waiting.wait()
        assert server.view.http_port is not None
        async with tcp_asker(server.view.http_port) as remote:
            assert (await remote.get("/api/v1/bookie/is_ready")).status == 503
            state = (await remote.get("/api/v1/bkctl/state")).json
            assert (state["stage"], state["running"]) == ("connect to the metadata store", False)
            assert (await remote.get("/metrics")).status == 200
            for path in ("last_log_mark", "list_disk_file", "gc", "gc_details", "list_bookie_info", "info"):
                assert (await remote.get(f"/api/v1/bookie/{path}")).status in {200, 503}, path
    finally:
        starting.cancel()
        await asyncio.wait([starting])
        await ports.workers.close()


async def test_the_socket_of_a_killed_bookie_is_replaced(bookie_config: BookieConfig) -> None:
    path = socket_path(bookie_config.storage.ledger_directories[0])
    Path(path).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        assert (await admin.get("/heartbeat")).text == "OK\n"
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert not os.path.lexists(path)


async def test_a_long_path_is_a_link_to_the_run_directory(
    bookie_config: BookieConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_end: contextlib.ExitStack
) -> None:
    run = Path(at_end.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(run))
    ledgers = tmp_path / ("x" * 100) / "ledgers"
    storage = msgspec.structs.replace(bookie_config.storage, ledger_directories=(str(ledgers),))
    config = msgspec.structs.replace(bookie_config, storage=storage)
    path = socket_path(str(ledgers))
    async with running_bookie(config):
        target = os.readlink(path)
        assert Path(target).parent == run / "bkctl"
        connector = aiohttp.UnixConnector(target)
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://b/heartbeat") as answer:
            assert await answer.text() == "OK\n"
    assert not os.path.lexists(path)
    assert list((run / "bkctl").iterdir()) == []


async def test_two_bookies_have_their_own_sockets(bookie_config: BookieConfig, tmp_path: Path) -> None:
    storage = msgspec.structs.replace(
        bookie_config.storage,
        journal_directories=(str(tmp_path / "journal-2"),),
        ledger_directories=(str(tmp_path / "ledgers-2"),),
    )
    second = msgspec.structs.replace(bookie_config, storage=storage, bookie_id="second")
    async with running_bookie(bookie_config), running_bookie(second):
        for config in (bookie_config, second):
            async with local_asker(config) as admin:
                assert (await admin.get("/api/v1/bkctl/state")).json["bookie_id"] == config.bookie_id
