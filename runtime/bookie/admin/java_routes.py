"""The other paths of a Java bookie that say something about the bookie itself, with Java's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from bkctl.runtime.admin.api import JavaSpace
from bkctl.runtime.admin.exposition import CONTENT_TYPE
from bkctl.runtime.admin.messages import AdminAnswer, AdminError, AdminRequest, Problem, Route, json_answer, text_answer
from bkctl.runtime.admin.tcp_ports import ADMIN_LANE
from bkctl.runtime.bookie.disks.monitor import total_space
from bkctl.runtime.bookie.metrics.catalogue import bookie_metrics
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.config import BookieConfig
from bkctl.storage.filenames import current_directory, parse_entry_log_file_name, parse_journal_file_name
from bkctl.storage.journal.log_mark import read_last_mark
from bkctl.storage.setting import MEBIBYTE, Described, described

T = TypeVar("T")

_FILE_KINDS: Final = ("journal", "entrylog", "index")
_FACTORS: Final = {"ms": 1000.0, "MiB": 1 / MEBIBYTE}


class JavaRoutes:
    """Answers for one bookie."""

    def __init__(self, view: BookieView) -> None:
        self._view = view
        self._metrics = bookie_metrics(view)

    def routes(self) -> list[Route]:
        """All of them."""
        bookie = "/api/v1/bookie"
        return [
            *self.probe_routes(),
            Route("GET", f"{bookie}/info", self._info),
            Route("GET", f"{bookie}/last_log_mark", self._last_log_mark),
            Route("GET", f"{bookie}/list_disk_file", self._list_disk_file),
            Route("GET", "/api/v1/config/server_config", self._server_config),
        ]

    def probe_routes(self) -> list[Route]:
        """What a port for scrapes alone serves."""
        return [
            *(Route(method, "/heartbeat", self._heartbeat) for method in ("GET", "PUT", "POST", "DELETE")),
            Route("GET", "/metrics", self._show_metrics),
        ]

    async def _heartbeat(self, _: AdminRequest) -> AdminAnswer:
        return text_answer("OK\n")

    async def _show_metrics(self, _: AdminRequest) -> AdminAnswer:
        daemon = self._view.ports.autorecovery
        text = self._metrics.text() + (b"" if daemon is None else daemon.metrics)
        return AdminAnswer(text, content_type=CONTENT_TYPE)

    async def _info(self, _: AdminRequest) -> AdminAnswer:
        file_system, directories = self._view.ports.file_system, self._view.config.storage.ledger_directories
        space = await self._in_lane(lambda: total_space(map(file_system.space, directories)))
        return json_answer(JavaSpace(free_space=space.free_bytes, total_space=space.total_bytes))

    async def _server_config(self, _: AdminRequest) -> AdminAnswer:
        return json_answer(_java_settings(self._view.config, self._view.live.values))

    async def _last_log_mark(self, _: AdminRequest) -> AdminAnswer:
        return json_answer(await self._in_lane(self._read_marks))

    def _read_marks(self) -> dict[str, str]:
        storage, found = self._view.config.storage, {}
        current_directories, count = (
            list(map(current_directory, storage.ledger_directories)),
            len(storage.journal_directories),
        )
        for index in range(count):
            mark = read_last_mark(self._view.ports.file_system, current_directories, index, count)
            name = f"LastLogMark: Journal Id - {mark.journal_id}({mark.journal_id:x}.txn)"
            found[name] = f"Pos - {mark.offset}"
        return found

    async def _list_disk_file(self, request: AdminRequest) -> AdminAnswer:
        wanted = request.query.get("file_type")
        if wanted is not None and wanted not in _FILE_KINDS:
            raise AdminError(Problem.INVALID, f"file_type is one of {', '.join(_FILE_KINDS)}")
        kinds = _FILE_KINDS if wanted is None else (wanted,)
        return json_answer(await self._in_lane(lambda: {f"{kind} files": self._names(kind) for kind in kinds}))

    def _names(self, kind: str) -> str:
        """Names with a tabulator after each. An index of bkctl is no list of files of ledgers, so it has none."""
        storage = self._view.config.storage
        directories, parse = {
            "journal": (storage.journal_directories, parse_journal_file_name),
            "entrylog": (storage.ledger_directories, parse_entry_log_file_name),
            "index": ((), parse_entry_log_file_name),
        }[kind]
        names = [
            name
            for directory in directories
            for name in sorted(self._view.ports.file_system.list_directory(current_directory(directory)))
            if parse(name) is not None
        ]
        return "".join(f"{name}\t" for name in names)

    async def _in_lane(self, job: Callable[[], T]) -> T:
        try:
            return await self._view.ports.workers.run(ADMIN_LANE, job)
        except OSError as error:
            # A new bookie that starts has no directories yet.
            problem = Problem.INTERNAL if self._view.is_running else Problem.UNAVAILABLE
            raise AdminError(problem, f"cannot read the directories of the bookie: {error.strerror}") from error


def _java_settings(config: BookieConfig, values: Mapping[str, object]) -> dict[str, str]:
    """Every setting that has a Java key and a value, in Java's units, without secrets.

    ``values``: by TOML names below ``[bookie]``.
    """
    settings = described(BookieConfig)
    counts = {
        each.java_key: len(value)
        for each in settings
        if isinstance(value := values.get(".".join(each.path)), list | tuple)
    }
    found = {"metadataServiceUri": config.metadata_uri}
    for each in settings:
        value, key = values.get(".".join(each.path)), each.java_key
        if key is not None and value is not None and not each.setting.is_secret:
            found[key] = _java_text(each, value, counts)
    return dict(sorted(found.items()))


def _java_text(each: Described, value: object, counts: Mapping[str | None, int]) -> str:
    java = each.setting.java
    assert java is not None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        shares = max(1, counts.get(java.shared_by, 1)) if java.shared_by is not None else 1
        number = value * shares * _FACTORS.get(java.unit, 1)
        return str(int(number)) if number == int(number) else repr(number)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value)
