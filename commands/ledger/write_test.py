"""``bkctl ledger write-test``: write ledgers, read them back, measure the speed."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import PASSWORD_HELP, parse_size_bytes, read_password
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import open_change
from bkctl.commands.session import open_session
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.access import require_access
from bkctl.runtime.client.api import quorum_warning
from bkctl.runtime.client.write_test import WriteTestConfig, WriteTestResult, run_write_test
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.ledger.changes import check_quorum_sizes
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.storage.words import counted, decimal, size

_ENTRY_BYTES_MAX = 4 * 1024 * 1024
_TABLE = Table(
    "WriteTestList",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("entries", "ENTRIES", is_right=True),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=2),
    Column("entries_read_back", "READ BACK", is_right=True, priority=4),
    Column("seconds", "SECONDS", decimal, is_right=True, priority=1),
    Column("entries_per_second", "ENTRIES/S", decimal, is_right=True),
    Column("mebibytes_per_second", "MIB/S", decimal, is_right=True),
    Column("latency_p50_ms", "P50 MS", decimal, is_right=True, priority=3),
    Column("latency_p99_ms", "P99 MS", decimal, is_right=True),
    Column("latency_max_ms", "MAX MS", decimal, is_right=True, is_wide=True),
    Column("segments", "SEGMENTS", is_right=True, priority=5),
    Column("last_entry_id", "LAST ENTRY", is_right=True, is_wide=True),
    name="ledger_id",
)


class DigestOption(enum.StrEnum):
    """Digest that protects entries."""

    CRC32C = "crc32c"
    CRC32 = "crc32"
    HMAC = "hmac"
    DUMMY = "dummy"


_DIGEST_OPTION = typer.Option(
    "--digest", metavar="TYPE", show_default=False, help="crc32c (default), crc32, hmac or dummy"
)


@command("write-test", example="ledger write-test --entries 10000 --entry-size 4k", effect=Effect.REVERSIBLE)
async def write_test(
    context: CommandContext,
    entries: Annotated[int, typer.Option("--entries", min=0, metavar="N", help="Entries per ledger")] = 1000,
    entry_size: Annotated[str, typer.Option("--entry-size", metavar="SIZE", help="Payload size of an entry")] = "1k",
    ledgers: Annotated[
        int,
        typer.Option("--ledgers", min=1, max=10_000, metavar="N", help="Number of ledgers"),
    ] = 1,
    ensemble_size: Annotated[int, typer.Option("--ensemble", "-E", metavar="N", help="Ensemble size")] = 3,
    write_quorum_size: Annotated[int, typer.Option("--write-quorum", "-W", metavar="N", help="Write quorum size")] = 2,
    ack_quorum_size: Annotated[int, typer.Option("--ack-quorum", "-A", metavar="N", help="Ack quorum size")] = 2,
    digest: Annotated[DigestOption, _DIGEST_OPTION] = DigestOption.CRC32C,
    password_file: Annotated[str | None, typer.Option("--password-file", metavar="FILE", help=PASSWORD_HELP)] = None,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=10_000, metavar="N", help="Outstanding adds")
    ] = 500,
    rate: Annotated[
        float | None,
        typer.Option("--max-per-second", min=0.001, metavar="N", help="At most so many entries"),
    ] = None,
    read_back: Annotated[bool, typer.Option("--read-back/--no-read-back", help="Read and compare entries")] = True,
) -> None:
    """Write test ledgers, close them, read every entry back and compare.

    The ledgers are kept; custom metadata: application=bkctl write-test.
    """
    entry_bytes = parse_size_bytes(entry_size)
    if entry_bytes > _ENTRY_BYTES_MAX:
        raise InvalidArgumentError(f"--entry-size {entry_size} is too large: an entry has at most 4 MiB")
    try:
        check_quorum_sizes(ensemble_size, write_quorum_size, ack_quorum_size)
    except ConfigurationError as error:
        raise InvalidArgumentError(str(error)) from error
    config = WriteTestConfig(
        entry_count=entries,
        entry_bytes=entry_bytes,
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
        digest_type=DigestType[digest.name],
        password=read_password(password_file) or b"",
        in_flight_max=in_flight,
        entries_per_second=rate,
        is_read_back=read_back,
    )
    await _run(context, config, ledgers)


async def _run(context: CommandContext, config: WriteTestConfig, ledger_count: int) -> None:
    console = context.console
    warning = quorum_warning(config.write_quorum_size, config.ack_quorum_size)
    if warning is not None:
        console.warn(warning)
    async with open_session(context) as session:
        client = await session.client()
        await require_access(client.ports)
        writable_count = len(await session.registrations.writable())
        plan = session.plan(
            summary=(
                f"will write {counted(ledger_count, 'ledger')} of {counted(config.entry_count, 'entry', 'entries')}; "
                f"writable: {counted(writable_count, 'bookie')}",
            ),
            items=({"action": "create", "path": session.root, "ledgers": ledger_count, "entries": config.entry_count},),
        )
        async with open_change(context, plan, session.store, is_locked=False):
            await _write(context, client, config, ledger_count)


async def _write(context: CommandContext, client: LedgerClient, config: WriteTestConfig, ledger_count: int) -> None:
    total = config.entry_count * ledger_count
    with (
        context.console.listing(_TABLE) as listing,
        context.console.progress("writing") as progress,
    ):
        for number in range(ledger_count):
            done, created = number * config.entry_count, list[int]()
            try:
                result = await run_write_test(
                    client,
                    config,
                    lambda entries, done=done: progress.update(done + entries, total),  # type: ignore[misc]
                    created.append,
                )
            except BaseException:
                for each in created:
                    context.console.warn(f"ledger {each} is left: bkctl ledger delete {each} deletes it")
                raise
            listing.add(_row(result))


def _row(result: WriteTestResult) -> dict[str, object]:
    rate = result.entries_per_second
    return {
        "ledger_id": str(result.ledger_id),
        "entries": result.entries,
        "payload_bytes": result.payload_bytes,
        "last_entry_id": str(result.last_entry_id) if result.last_entry_id >= 0 else None,
        "segments": result.segments,
        "entries_read_back": result.entries_read_back,
        "seconds": round(result.write_s, 3),
        "entries_per_second": round(rate, 1),
        "mebibytes_per_second": round(result.payload_bytes / result.write_s / 2**20, 3) if result.write_s > 0 else None,
        "latency_p50_ms": result.latency_p50_ms,
        "latency_p99_ms": result.latency_p99_ms,
        "latency_max_ms": result.latency_max_ms,
    }
