"""``bkctl bookie init``: create a bookie's directories and cookie, or only check whether it would start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import resource
import tempfile
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import typer

from bkctl.commands.bookie.start import require_meant_cluster, require_secrets_of_child
from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect, id_by_settings, load_settings
from bkctl.commands.cookie.access import cookie_body, require_not_registered
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session, require_metadata_uri
from bkctl.commands.shared_options import takes_bookie_options
from bkctl.runtime.autorecovery.config import DaemonConfig
from bkctl.runtime.bookie.boot.directory_claim import DirectoryClaim, release
from bkctl.runtime.bookie.boot.open_files import connections_warning, fit_open_files
from bkctl.runtime.bookie.boot.process import real_ports
from bkctl.runtime.bookie.boot.start_checks import CheckResult, Finding, StartChecks, run_check
from bkctl.runtime.bookie.cookies.check import CookieCheck, CookieDecision
from bkctl.runtime.bookie.cookies.directories import version_path
from bkctl.runtime.bookie.identity import BookieNames
from bkctl.runtime.bookie.live_settings import LiveSettings
from bkctl.runtime.bookie.ports import BookieMetadata, BookiePorts
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError, ConflictError, RefusedError
from bkctl.runtime.metadata.bookies.cookies import encode_cookie
from bkctl.runtime.net.client_handshake import ClientSecurity
from bkctl.runtime.net.host import OsHost
from bkctl.storage.filenames import current_directory

_CHECK_TABLE = Table(
    "Checks", Column("name", "CHECK"), Column("result", "RESULT"), Column("detail", "DETAIL"), name="name"
)
_NEW_DIRECTORY_BYTES = 64 * 1024
"""What a start writes to a new directory: cookie, lock, empty index. Seen to be enough; a quarter of it is not."""


@command(
    "init",
    example="bookie init --check --conf conf/bk_server.conf",
    effect=Effect.REVERSIBLE,
    looks_with="check",
    is_configured_by_files=True,
)
@takes_bookie_options
async def init(
    context: CommandContext,
    flags: BookieFlags,
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether the bookie would start; change nothing")
    ] = False,
) -> None:
    """Create the directories and the cookie of a new bookie.

    Its first start would do the same. Refused if a directory has data, or the cluster has a cookie of this bookie or
    ledgers that reference it. --check does every check of a start and shows each result: user, TLS and logins, port,
    cluster, cookies, locks, index, journals, disks, directories, file limits. Its exit code is 0, or that of the first
    failed check.
    """
    settings = context.settings
    if check and (settings.is_rehearsal or settings.apply_path is not None):
        raise InvalidArgumentError("--check changes nothing: use it without --dry-run, --plan-out and --apply")
    loaded = load_settings(context, flags)
    config = loaded.config
    config.storage.require_paired_indexes()
    config = msgspec.structs.replace(config, metadata_uri=config.metadata_uri or require_metadata_uri(context))
    if check:
        await require_meant_cluster(context)
    bookie_id = id_by_settings(config)
    ports = real_ports()
    try:
        if check:
            await _check(context, config, ports, bookie_id, loaded.autorecovery)
        else:
            await _create(context, config, ports, bookie_id)
    finally:
        await ports.workers.close()


async def _check(
    context: CommandContext, config: BookieConfig, ports: BookiePorts, bookie_id: str, child: DaemonConfig | None
) -> None:
    checks = await StartChecks(config, ports, bookie_id).run()
    if child is not None:
        checks.append(await run_check("autorecovery", _autorecovery(child)))
    checks.append(await run_check("directories", asyncio.to_thread(_directories, config)))
    checks.append(await run_check("file limits", asyncio.to_thread(_file_limits, config)))
    rows: list[dict[str, object]] = [
        {"name": each.name, "result": each.result, "detail": each.detail} for each in checks
    ]
    failed = next((each.error for each in checks if each.error is not None), None)
    body: dict[str, object] = {"bookie_id": bookie_id, "would_start": failed is None}
    context.console.record("BookieStartCheck", body, name="bookie_id", details={"checks": rows})
    if context.console.is_for_people:
        first = next((row for row in rows if row["result"] == CheckResult.FAILED), {})
        first |= {"detail": "see the error below"}  # which has the same sentence
    context.console.table(_CHECK_TABLE, rows)
    if failed is not None:
        raise failed


async def _autorecovery(child: DaemonConfig) -> Finding:
    """ConfigurationError for what the bookie refuses; what only ends its daemon is a warning."""
    require_secrets_of_child(child)
    try:
        ClientSecurity.of(child.client.security)
    except ConfigurationError as error:
        return Finding(str(error), is_warning=True)
    return Finding("in a process of its own")


def _directories(config: BookieConfig) -> Finding:
    """Try to write where a start would write; OSError. The files have no name, so even a kill leaves nothing."""
    storage = config.storage
    only_journals = {*storage.journal_directories} - {*storage.ledger_directories, *storage.index_directories}
    created = []
    with contextlib.ExitStack() as at_end:  # all at once, because directories may share a disk
        for path in storage.all_directories:
            place = current_directory(path)
            while not os.path.lexists(place):
                place = os.path.dirname(os.path.abspath(place))
            if not os.path.isdir(place):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", place)
            if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "this user cannot write there", place)
            if not os.path.exists(path):
                created.append(path)
            # A used bookie starts on full disks, as read-only; its ledger and index directories need a file each.
            is_used = os.path.exists(version_path(path))
            if is_used and path in only_journals:
                continue
            try:
                probe = at_end.enter_context(tempfile.TemporaryFile(dir=place))
                probe.write(bytes(0 if is_used else _NEW_DIRECTORY_BYTES))
                probe.flush()
                os.fsync(probe.fileno())
            except OSError as error:
                raise OSError(error.errno, f"a start could not write there: {error.strerror}", place) from error
    return Finding(f"would be created: {', '.join(created)}" if created else "writable")


def _file_limits(config: BookieConfig) -> Finding:
    """The limits of this shell; a service manager may set others. ConfigurationError."""
    size_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    files_max = OsHost().open_files_max()
    if text := connections_warning(config, fit_open_files(config, files_max), files_max):
        return Finding(text, is_warning=True)
    largest = max(config.storage.journal.size_bytes_max, config.storage.engine.entry_log.size_bytes_max)
    if size_bytes != resource.RLIM_INFINITY and size_bytes < largest:
        return Finding(f"files of {size_bytes} bytes, but logs may have {largest}: raise ulimit -f", is_warning=True)
    return Finding("enough")


async def _create(context: CommandContext, config: BookieConfig, ports: BookiePorts, bookie_id: str) -> None:
    await asyncio.to_thread(_directories, config)  # also for a rehearsal: the plan could not be carried out
    async with open_session(context, metadata_uri=config.metadata_uri) as session:
        claim = DirectoryClaim(ports, BookieMetadata(session.store, session.uri, config, LiveSettings(config)))
        names = await claim.check(bookie_id, config.port)

        async def examine() -> tuple[Plan, CookieCheck]:
            checked = await claim.check_again(names)
            _require_new(bookie_id, checked)
            await require_not_registered(session, bookie_id)
            return _plan(session, config, names), checked

        @contextlib.asynccontextmanager
        async def locked(_: Change) -> AsyncIterator[None]:
            locks = await claim.lock()
            try:
                yield
            finally:
                await release(locks)

        async def apply(change: Change, checked: CookieCheck) -> None:
            change.require_lock()
            await claim.stamp(names, checked, "")

        await make_change(context, examine, apply, session.store, bookie_ids=(bookie_id,), turn=locked)
    context.console.record("BookieInitialized", cookie_body(names.cookie), name="bookie_id")


def _require_new(bookie_id: str, check: CookieCheck) -> None:
    if check.decision is CookieDecision.BOOT:
        raise ConflictError(
            f"nothing was changed: bookie {bookie_id} has its cookie already: start it with bkctl bookie start"
        )
    if check.decision is not CookieDecision.STAMP:
        raise RefusedError(
            f"nothing was changed: bookie {bookie_id} is not new ({check.decision.value}): bkctl bookie start does that"
        )


def _plan(session: Session, config: BookieConfig, names: BookieNames) -> Plan:
    bookie_id = names.cookie.bookie_id
    digest = hashlib.sha256(encode_cookie(names.cookie)).hexdigest()
    paths = [*map(version_path, config.storage.all_directories), session.cookies.path(bookie_id)]
    return session.plan(
        subject=bookie_id,
        summary=(
            f"will create the directories and the cookie of bookie {bookie_id}: journals in "
            f"{','.join(config.storage.journal_directories)}, ledgers in {','.join(config.storage.ledger_directories)}",
        ),
        items=[{"action": "create", "path": path, "expected_version": None, "sha256": digest} for path in paths],
    )
