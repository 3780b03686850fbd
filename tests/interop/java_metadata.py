"""Java's metadata code and shell on one ledgers root, as commands to a JVM that serves all tests."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from bkctl.runtime.ledger.metadata import LedgerMetadata
from tests.interop.java import JavaProgram


class ShellEvent(NamedTuple):
    """A log event of the shell; what it found out is in the values, which its own console leaves out."""

    message: str
    values: dict[str, str]


class ShellResult(NamedTuple):
    """What a command of Java's shell left behind."""

    exit_code: int
    events: list[ShellEvent]
    stdout: str

    def values(self, key: str) -> list[str]:
        """This value of all events that have it."""
        return [event.values[key] for event in self.events if key in event.values]

    @property
    def text(self) -> str:
        """All messages and values, for what may be said in either."""
        return "\n".join(f"{event.message} {event.values}" for event in self.events)


class JavaMetadata:
    """One ledgers root. Every session is a ZooKeeper session of its own, begun when it is first named."""

    def __init__(self, program: JavaProgram, metadata_uri: str, **settings: str) -> None:
        self.metadata_uri = metadata_uri
        self._program = program
        self._settings = settings
        self._sessions: set[str] = set()

    async def call(self, command: str, session: str = "main", **arguments: Any) -> dict[str, Any]:
        """Run a command of ``MetadataPeer``; JavaError if Java threw."""
        self._sessions.add(session)
        return await self._program.call(
            command, uri=self.metadata_uri, settings=self._settings, session=session, **arguments
        )

    async def shell(self, *arguments: str, **settings: str) -> ShellResult:
        """Run a command of Java's shell, with these settings beside those of the root."""
        answer = await self._program.call(
            "shell", uri=self.metadata_uri, settings=self._settings | settings, arguments=arguments
        )
        events = [ShellEvent(event["message"], event["values"]) for event in answer["events"]]
        if "exception" in answer:
            events.append(ShellEvent(answer["exception"], {}))
        return ShellResult(answer["exit_code"], events, answer["stdout"])

    async def list_ledgers(self) -> list[int]:
        """Ids of all ledgers, which both of Java's ways to list them must agree on."""
        answer = await self.call("ledger_list")
        assert answer["walked"] == answer["ranged"]
        return list(answer["walked"])

    async def close(self, session: str = "main") -> None:
        """End a session in order."""
        self._sessions.discard(session)
        await self._program.call("close", uri=self.metadata_uri, session=session)

    async def close_all(self) -> None:
        """End all sessions in order."""
        for session in sorted(self._sessions):
            await self.close(session)


_STATES = {1: "OPEN", 2: "IN_RECOVERY", 3: "CLOSED"}
_DIGESTS = {"CRC32": "CRC32", "HMAC": "MAC", "CRC32C": "CRC32C", "DUMMY": "DUMMY"}


def as_java_sees(metadata: LedgerMetadata) -> dict[str, Any]:
    """Our metadata in the terms of Java's answers, which also hold ``ledger_id`` and ``version``."""
    return {
        "format_version": metadata.format_version,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "state": _STATES[metadata.state],
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "digest_type": None if metadata.digest_type is None else _DIGESTS[metadata.digest_type.name],
        "password": None if metadata.password is None else base64.b64encode(metadata.password).decode(),
        "segments": [[segment.first_entry_id, list(segment.ensemble)] for segment in metadata.segments],
        "labels": {key: base64.b64encode(value).decode() for key, value in metadata.custom_metadata},
    }
