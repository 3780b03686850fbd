"""``bkctl cookie verify``: the cookie doctor. Finds why a bookie does not start, and one safe command to fix it."""

from __future__ import annotations

import shlex

import msgspec

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, load_config
from bkctl.commands.cookie.access import listed, scan_references
from bkctl.commands.cookie.own_directories import OwnBookie, open_own_bookie
from bkctl.commands.errors import Outcome
from bkctl.commands.rendering import Column, Table
from bkctl.commands.shared_options import BOOKIE_OPTIONS, STORAGE_OPTIONS, takes_bookie_options
from bkctl.runtime.bookie.cookies.directories import version_path
from bkctl.runtime.bookie.cookies.doctor import diagnose
from bkctl.runtime.bookie.cookies.evidence import Cause, CookieFinding, Evidence, Remedy
from bkctl.runtime.bookie.identity import resolve_identity
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.bookies.cookies import Cookie
from bkctl.runtime.net.host import OsHost
from bkctl.runtime.replication.survey.given_up import find_removed
from bkctl.storage.words import counted

_TABLE = Table(
    "Differences",
    Column("where", "WHERE"),
    Column("field", "FIELD"),
    Column("found", "FOUND"),
    Column("settings", "EXPECTED"),
)


@command("verify", example="cookie verify --conf conf/bk_server.conf", is_cut=True, is_configured_by_files=True)
@takes_bookie_options
async def verify(
    context: CommandContext,
    flags: BookieFlags,
) -> Outcome:
    """Compare settings, VERSION files, stored cookie and instance id of this machine's bookie.

    Changes nothing. Uses the settings of bkctl bookie start. If the bookie cannot or must not start, it shows the cause
    and one safe command that fixes it, and exits with 10. In that case all ledgers are read to find those that
    reference the bookie.
    """
    config = load_config(context, flags)
    async with open_own_bookie(context, config) as own:
        evidence = await _evidence(context, own)
    finding = diagnose(evidence) or _unusable_address(config)
    rows = _rows(evidence)
    own_id = evidence.bookie_id
    has_new_address = finding is not None and finding.cause is Cause.NEW_ADDRESS
    id_in_ledgers = evidence.cookies_on_disk[0].bookie_id if has_new_address else own_id
    body: dict[str, object] = {
        "bookie_id": own_id,
        "instance_id": evidence.expected.instance_id,
        "is_healthy": finding is None,
        "is_registered": evidence.is_registered,
        "is_new": finding is None and not evidence.has_stored,
        "ledgers_naming_it": evidence.ledgers_naming.get(id_in_ledgers),
        "cause": None if finding is None else finding.cause.value,
        "sentence": None if finding is None else finding.sentence,
        "command": None if finding is None else command_text(context.settings.command_line, finding.remedy),
    }
    context.console.record("CookieVerification", body, name="bookie_id", details={"fields": rows})
    context.console.table(_TABLE, [row for row in rows if not row["is_equal"]])
    return Outcome.OK if finding is None else Outcome.FINDINGS


def _unusable_address(config: BookieConfig) -> CookieFinding | None:
    """A configured id does not contain the address, but a start refuses a wrong address too."""
    try:
        resolve_identity(config, OsHost())
    except ConfigurationError as error:
        words = ("bookie", "start", "--advertised-address", "HOST")
        remedy = Remedy(words, has_settings=True, without=("--advertised-address",))
        return CookieFinding(Cause.UNUSABLE_ADDRESS, str(error), remedy)
    return None


async def _evidence(context: CommandContext, own: OwnBookie) -> Evidence:
    """Collect the evidence. Ledgers are read unless everything matches already and no directory is empty."""
    evidence, _ = await own.gather()
    live = (await own.session.registrations.snapshot()).live
    evidence = msgspec.structs.replace(evidence, is_registered=own.expected.bookie_id in live)
    if diagnose(evidence) is None and evidence.has_stored and not evidence.bare_directories:
        return evidence
    ids = sorted({own.expected.bookie_id, *evidence.other_cookies, *(c.bookie_id for c in evidence.cookies_on_disk)})
    references = await scan_references(context, own.session, ids)
    if references.unreadable_count:
        context.console.warn(
            f"{counted(references.unreadable_count, 'ledger is', 'ledgers are')} unreadable and may reference any "
            f"bookie: {references.unreadable_advice}"
        )
    evidence = msgspec.structs.replace(evidence, ledgers_naming=references.counts_at_most)
    if evidence.has_stored or not evidence.is_named(evidence.bookie_id):
        return evidence
    session = own.session
    ports = (await session.client()).ports
    removed = await find_removed(ports, session.store, [evidence.bookie_id])
    return msgspec.structs.replace(evidence, is_given_up=evidence.bookie_id in removed)


def _rows(evidence: Evidence) -> list[dict[str, object]]:
    rows = _rows_of("stored cookie", evidence.stored, evidence.stored_damage, evidence)
    for directory in evidence.directories:
        rows += _rows_of(
            version_path(directory.path), directory.cookie, directory.damage or directory.trouble, evidence
        )
    return rows


def _rows_of(where: str, cookie: Cookie | None, damage: str | None, evidence: Evidence) -> list[dict[str, object]]:
    if cookie is None:
        return [{"where": where, "field": None, "found": damage or "none", "settings": None, "is_equal": False}]
    found = cookie.fields()
    return [
        {
            "where": where,
            "field": field,
            "found": listed(found[field]),
            "settings": listed(value),
            "is_equal": found[field] == value,
        }
        for field, value in evidence.expected.fields().items()
    ]


def command_text(command_line: tuple[str, ...], remedy: Remedy) -> str:
    """A remedy as a complete command line, with the settings given to verify; the console adds the cluster."""
    settings = STORAGE_OPTIONS if remedy.words[0] == "storage" else BOOKIE_OPTIONS
    wanted = (settings - {*remedy.without}) if remedy.has_settings else frozenset()
    return shlex.join(["bkctl", *remedy.words, *_given(command_line, wanted)])


def _given(command_line: tuple[str, ...], wanted: frozenset[str]) -> list[str]:
    words: list[str] = []
    for position, word in enumerate(command_line):
        name, equals, _ = word.partition("=")
        if name in wanted:
            words += [word] if equals else list(command_line[position : position + 2])
    return words
