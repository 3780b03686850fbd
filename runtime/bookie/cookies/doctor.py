"""Whether a bookie may use its directories, and if not: what happened to them, and the safe command that fixes it.

Pure: takes ``Evidence``, returns a finding or None. Boot and ``bkctl cookie verify`` use the same rules, so a bookie
that verifies starts, and one that does not start reports what verify reports. Source: metadata section 7.3. Some rules
are stricter than Java's, because a lost or changed directory would turn lost entries into "no such entry".

The rules are ordered by the harm of a wrong answer: mistaking a cluster or a bookie for another one, directories in
another order, then missing directories.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bkctl.runtime.bookie.cookies.directory_rules import DIRECTORY_RULES, bare_directory, emptied_index
from bkctl.runtime.bookie.cookies.evidence import Cause, CookieFinding, Evidence, Remedy, from_config, verify_again
from bkctl.runtime.metadata.bookies.cookies import Cookie


def diagnose(evidence: Evidence) -> CookieFinding | None:
    """The most serious finding, or None for directories that may be used: as they are, or as those of a new bookie."""
    return next((finding for rule in _RULES if (finding := rule(evidence)) is not None), None)


def diagnose_loss(evidence: Evidence) -> CookieFinding | None:
    """What else is wrong with a bookie with emptied directories; None: other bookies may restore their data.

    Judged as if the emptied directories were intact. A ledger directory and its index directory must be empty together:
    rows that reference missing entry logs would make the entries look present, and entries in logs without rows would
    be denied.
    """
    if evidence.emptied_index is not None:
        return emptied_index(evidence, evidence.emptied_index)
    empty = {directory.path for directory in evidence.directories if not directory.has_files}
    for ledger_path, index_path in evidence.expected.index_pairs:
        if ledger_path in empty and index_path not in empty:
            return CookieFinding(
                Cause.EMPTIED_VOLUME,
                f"empty directory: {ledger_path} is empty, but {index_path} still references the entry logs that "
                "were in it: empty the index directory, too",
                verify_again(),
            )
    filled = tuple(
        msgspec.structs.replace(directory, cookie=evidence.expected, has_files=True)
        if directory.path in empty
        else directory
        for directory in evidence.directories
    )
    is_wiped = len(empty) == len(evidence.directories)
    stored = evidence.expected if is_wiped and not evidence.has_stored else evidence.stored
    return diagnose(msgspec.structs.replace(evidence, directories=filled, stored=stored, ledgers_naming={}))


def _unusable_directory(evidence: Evidence) -> CookieFinding | None:
    for directory in evidence.directories:
        if directory.trouble is not None:
            return CookieFinding(
                Cause.UNUSABLE_DIRECTORY,
                f"cannot use {directory.path}: {directory.trouble}",
                verify_again(),
            )
    return None


def _migration(evidence: Evidence) -> CookieFinding | None:
    """An interrupted change of the bookie id; its records in the directories are removed last."""
    for directory in evidence.directories:
        if directory.migration is not None:
            old, new = directory.migration
            return CookieFinding(
                Cause.MIGRATION_CUT_OFF,
                f"interrupted migration: the cookie of bookie {old} was being moved to {new}",
                Remedy(("cookie", "migrate", "--from", old, "--to", new), has_settings=True, without=("--bookie-id",)),
            )
    return None


def _two_bookies(evidence: Evidence) -> CookieFinding | None:
    """A running bookie has this id but other directories."""
    if not evidence.is_registered or any(cookie.bookie_id == evidence.bookie_id for cookie in evidence.cookies_on_disk):
        return None
    return CookieFinding(
        Cause.TWO_BOOKIES,
        (
            f"two bookies with one id: a running bookie is registered as {evidence.bookie_id}, and these directories "
            "do not belong to it"
        ),
        Remedy(("bookie", "start", "--bookie-id", "AN-ID-OF-ITS-OWN"), has_settings=True, without=("--bookie-id",)),
    )


def _instance(evidence: Evidence) -> CookieFinding | None:
    """The cluster differs from that of the directories or of the stored cookie."""
    own = evidence.expected.instance_id or None
    foreign = [
        (directory.path, directory.cookie.instance_id or None)
        for directory in evidence.directories
        if directory.cookie is not None and (directory.cookie.instance_id or None) != own
    ]
    stored = None if evidence.stored is None else evidence.stored.instance_id or None
    remedy = Remedy(("cluster", "instance-id"), has_settings=False)
    if evidence.stored is not None and stored != own:
        what_happened = (
            "the instance id was replaced while the cluster had bookies; restore the old INSTANCEID"
            if stored is not None
            else "the cluster had no INSTANCEID when the bookie joined, and one was added since; if the ledgers are "
            "those of that time, remove it"
        )
        return CookieFinding(
            Cause.NEW_INSTANCE,
            f"different instance: the cluster's instance id is {own or 'none'}, but the stored cookie of bookie "
            f"{evidence.bookie_id} has instance id {stored or 'none'}: {what_happened}",
            remedy,
        )
    if not foreign:
        return None
    path, instance_id = foreign[0]
    return CookieFinding(
        Cause.WRONG_CLUSTER,
        f"wrong cluster: {path} belongs to a bookie of instance {instance_id or 'none'}, but the configured "
        f"cluster is instance {own or 'none'}; set the metadata URI of the cluster that the directories belong "
        "to, or, if that cluster was formatted, use empty directories",
        remedy,
    )


def _other_id_on_disk(evidence: Evidence) -> CookieFinding | None:
    """VERSION files have another bookie id than the settings."""
    own = evidence.bookie_id
    others = [
        directory
        for directory in evidence.directories
        if directory.cookie is not None and directory.cookie.bookie_id != own
    ]
    if not others:
        return None
    first = others[0].cookie
    assert first is not None
    is_whole = len(others) == len(evidence.directories) and all(directory.cookie == first for directory in others)
    if is_whole and not evidence.has_stored and _is_renamed(evidence.expected, first):
        return _new_address(evidence, first.bookie_id)
    return CookieFinding(
        Cause.DIRECTORY_OF_ANOTHER,
        f"{others[0].path} belongs to bookie {first.bookie_id}, not to {own}: the wrong disk is mounted there, "
        "or a directory of another bookie is configured",
        Remedy(("cookie", "show", first.bookie_id)) if first.bookie_id in evidence.other_cookies else verify_again(),
    )


def _new_address(evidence: Evidence, other: str) -> CookieFinding:
    own = evidence.bookie_id
    # An id that ledgers reference is never given to directories: they might belong to another bookie.
    if other in evidence.other_cookies and not evidence.is_named(other) and not evidence.is_named(own):
        remedy = Remedy(("cookie", "migrate", "--from", other, "--to", own), has_settings=True)
    else:
        remedy = Remedy(("bookie", "start", "--bookie-id", other), has_settings=True, without=("--bookie-id",))
    return CookieFinding(
        Cause.NEW_ADDRESS,
        f"new address: the directories belong to bookie {other}, but the settings give the id {own}; while "
        f"ledgers reference {other} the bookie must keep that id, which need not be its address",
        remedy,
    )


def _former_id(evidence: Evidence) -> CookieFinding | None:
    """The cluster has a bookie with another id that this host's settings could have given it."""
    own = evidence.bookie_id
    found = [each for each in evidence.former_ids if each != own and each in evidence.other_cookies]
    if not found:
        return None
    other = found[0]
    verb = "decommission" if evidence.is_named(other) else "cookie delete"
    return CookieFinding(
        Cause.ADDRESS_OF_ANOTHER,
        f"the address of this host belongs to bookie {other} in the cluster, but these directories do not; if "
        "that bookie has failed permanently, remove it, otherwise give this one its own id (--bookie-id)",
        Remedy((*verb.split(), other)),
    )


def _damaged_cookie(evidence: Evidence) -> CookieFinding | None:
    if evidence.stored_damage is None:
        return None
    is_whole = all(
        directory.cookie is not None and not evidence.expected.differences(directory.cookie)
        for directory in evidence.directories
    )
    remedy = from_config("update", evidence) if is_whole else Remedy(("cookie", "show", evidence.bookie_id, "--raw"))
    return CookieFinding(
        Cause.DAMAGED_COOKIE,
        f"the stored cookie of bookie {evidence.bookie_id} is damaged ({evidence.stored_damage})",
        remedy,
    )


def _damaged_version(evidence: Evidence) -> CookieFinding | None:
    damaged = next((directory for directory in evidence.directories if directory.damage is not None), None)
    if damaged is None:
        return None
    return CookieFinding(
        Cause.DAMAGED_VERSION,
        f"the VERSION file in {damaged.path} is damaged ({damaged.damage})",
        from_config("update" if evidence.has_stored else "create", evidence),
    )


def _is_renamed(expected: Cookie, other: Cookie) -> bool:
    """Whether the cookies are equal except for the bookie id."""
    return not expected.differences(msgspec.structs.replace(other, bookie_id=expected.bookie_id))


_RULES: tuple[Callable[[Evidence], CookieFinding | None], ...] = (
    _unusable_directory,
    _migration,
    _two_bookies,
    _instance,
    _other_id_on_disk,
    _former_id,
    bare_directory,
    _damaged_cookie,
    _damaged_version,
    *DIRECTORY_RULES,
)
