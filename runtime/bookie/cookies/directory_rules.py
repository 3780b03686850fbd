"""Rules of the cookie doctor on directories: their number, order and names, and what is missing. Pure.

Each rule assumes that the rules before it found nothing. Source: metadata sections 7.2 and 7.3, storage section 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from bkctl.runtime.bookie.cookies.directories import DirectoryState
from bkctl.runtime.bookie.cookies.evidence import (
    Cause,
    CookieFinding,
    Evidence,
    Remedy,
    from_config,
    is_expansion,
    lost_disk,
    remove_bookie,
    verify_again,
)
from bkctl.runtime.metadata.bookies.cookies import LAYOUT_VERSION, Cookie
from bkctl.storage.words import counted

_LISTS = {"journalDir": "--journal-dir", "ledgerDirs": "--ledger-dir", "indexDirs": "--index-dir"}

_INDEX_ADVICE = "run `bkctl storage index rebuild`"


def bare_directory(evidence: Evidence) -> CookieFinding | None:
    """Ledgers reference the bookie, but one of its directories has only a VERSION file, which was put back by hand.

    Comes before all findings that a new cookie would fix: that would hide the loss of the disk.
    """
    count = evidence.ledgers_naming.get(evidence.bookie_id, 0)
    is_known = evidence.has_stored or any(directory.has_files for directory in evidence.directories)
    if not count or not is_known or not evidence.bare_directories:
        return None
    return _emptied_volume(
        evidence,
        f"{evidence.bare_directories[0].path} has only its VERSION file, although "
        f"{counted(count, 'ledger references', 'ledgers reference')} bookie {evidence.bookie_id}",
    )


def _changed_lists(evidence: Evidence) -> CookieFinding | None:
    """The settings have other directories than the cookies."""
    expected = evidence.expected
    known = evidence.stored or next(iter(evidence.cookies_on_disk), None)
    if known is None or not expected.differences(known) or (is_expansion(evidence) and evidence.is_expansion_allowed):
        return None
    if evidence.stored is None:
        is_moved = is_same_shape(expected, known)
        return _moved_directory(evidence, known) if is_moved else _changed_shape(evidence, known)
    return _changed_since_stored(evidence, known)


def _changed_since_stored(evidence: Evidence, known: Cookie) -> CookieFinding:
    own = evidence.bookie_id
    on_disk = evidence.cookies_on_disk
    if _lacks_index_directories(evidence.expected, known):
        finding = CookieFinding(
            Cause.INDEX_DIRECTORIES_UNNAMED,
            f"the cookie of bookie {own} has layout {known.layout_version}, which has no index directories, but "
            "they are configured separately from the ledger directories (usual after an upgrade to 4.16)",
            from_config("update", evidence),
        )
    elif not any(directory.is_stamped for directory in evidence.directories):
        finding = _taken_id(evidence, known)
    elif is_expansion(evidence):
        finding = CookieFinding(
            Cause.DIRECTORIES_CHANGED,
            f"more directories are configured than the cookie of bookie {own} has ({_lists(evidence, known)}); "
            "the bookie has no ledgers yet, so the cookie can be updated",
            Remedy(("cookie", "expand"), has_settings=True),
        )
    elif len(on_disk) == len(evidence.directories) and not any(map(evidence.expected.differences, on_disk)):
        finding = CookieFinding(
            Cause.DIFFERENT_COOKIE,
            f"the stored cookie of bookie {own} has other directories than its VERSION files and settings "
            f"({_lists(evidence, known)})",
            from_config("update", evidence),
        )
    elif is_same_shape(evidence.expected, known) and not evidence.misplaced_directories:
        finding = _moved_directory(evidence, known)
    elif is_same_shape(evidence.expected, known) and (swapped := _swapped_volumes(evidence)) is not None:
        finding = swapped
    else:
        finding = _changed_shape(evidence, known)
    return finding


def _lacks_index_directories(expected: Cookie, known: Cookie) -> bool:
    """Common after an upgrade: without index directories, a cookie of layout 4 implies the ledger directories."""
    return (
        known.layout_version < LAYOUT_VERSION
        and known.index_directories is None
        and [difference.field for difference in expected.differences(known)] == ["indexDirs"]
    )


def _moved_directory(evidence: Evidence, known: Cookie) -> CookieFinding:
    expected = evidence.expected
    lost = [directory for directory in evidence.directories if not directory.is_stamped]
    if lost or evidence.stored is None:
        at_fault = lost[0].path if lost else expected.bookie_id
        reason = f"and {at_fault} has no cookie" if lost else "and the cluster has no cookie for it"
        return CookieFinding(
            Cause.MOVED_DIRECTORY,
            f"other directories are configured than the cookie of bookie {expected.bookie_id} has "
            f"({_lists(evidence, known)}), {reason}: configure the directories that it had",
            _old_lists(evidence, known),
        )
    return CookieFinding(
        Cause.MOVED_DIRECTORY,
        f"moved directory: directories of bookie {expected.bookie_id} are configured under another name "
        f"({_lists(evidence, known)}); its VERSION files are in them",
        from_config("update", evidence),
    )


def _taken_id(evidence: Evidence, known: Cookie) -> CookieFinding:
    return CookieFinding(
        Cause.TWO_BOOKIES,
        f"two bookies with one id: this cluster has {evidence.bookie_id} with other directories "
        f"({_lists(evidence, known)}), and the configured ones have none of its cookies",
        Remedy(("bookie", "start", "--bookie-id", "AN-ID-OF-ITS-OWN"), has_settings=True, without=("--bookie-id",)),
    )


def _changed_shape(evidence: Evidence, known: Cookie) -> CookieFinding:
    return CookieFinding(
        Cause.DIRECTORIES_CHANGED,
        f"the number or order of the directories of bookie {evidence.bookie_id} changed "
        f"({_lists(evidence, known)}). They determine where each ledger is stored, so entries would be looked "
        "for on the wrong disk. Restore the old list; to use other disks, decommission the bookie and start it "
        "again with empty directories",
        _old_lists(evidence, known),
    )


def _changed_places(evidence: Evidence) -> CookieFinding | None:
    """The cookies match the settings, but directories had other positions when they were last used."""
    if not evidence.misplaced_directories or not evidence.has_ledgers:
        return None
    if (swapped := _swapped_volumes(evidence)) is not None:
        return swapped
    directory = evidence.misplaced_directories[0]
    return CookieFinding(
        Cause.DIRECTORIES_CHANGED,
        f"the number or order of the directories of bookie {evidence.bookie_id} changed, although its cookie "
        f"matches: {directory.path} was {_words(directory.place)} and would be "
        f"{_words(evidence.places[directory.path])}; entries would be looked for on the wrong disk. Restore the old "
        "list; to use other disks, decommission the bookie and start it again with empty directories",
        Remedy(("bookie", "start", *_options_of_places(evidence)), has_settings=True, without=tuple(_LISTS.values())),
    )


def _swapped_volumes(evidence: Evidence) -> CookieFinding | None:
    """The same places are in use, by other directories than before. No list fixes it: the cookies have this order.

    Cookies that were rewritten for another order look the same and have the same fix.
    """
    directories = evidence.misplaced_directories
    places = evidence.places
    if sorted(directory.place or () for directory in directories) != sorted(
        places[directory.path] for directory in directories
    ):
        return None
    rightful = {places[directory.path]: directory.path for directory in directories}
    changes = "; ".join(
        f"the volume at {directory.path} was {_words(directory.place)}, the place of {rightful[directory.place or ()]}"
        for directory in directories
    )
    return CookieFinding(
        Cause.SWAPPED_VOLUMES,
        f"swapped volumes: {changes}; entries would be looked for on the wrong disk. Mount them at their old "
        "places, or swap the configured directories, and check again",
        verify_again(),
    )


def _lacking_version(evidence: Evidence) -> CookieFinding | None:
    """A directory of a known bookie has no VERSION file."""
    lacking = [directory for directory in evidence.directories if not directory.is_stamped]
    is_removed = not evidence.has_stored and not evidence.is_named(evidence.bookie_id)
    if not lacking or is_expansion(evidence) or (is_removed and not any(each.has_files for each in lacking)):
        return None  # what is left of a decommissioned bookie: ``_lost_cookie``
    is_known = evidence.has_stored or any(
        directory.has_files for directory in evidence.directories if directory.is_stamped
    )
    if not is_known:
        return _new_bookie(evidence, lacking)
    if (filled := next((directory for directory in lacking if directory.has_files), None)) is not None:
        if evidence.has_stored and filled.place is not None:
            return CookieFinding(
                Cause.LOST_VERSION,
                (
                    f"the VERSION file in {filled.path} is missing; its other files show that it is a directory of "
                    "this bookie"
                ),
                from_config("update", evidence),
            )
        return _foreign_files(filled)
    is_index = all(map(evidence.is_index_alone, lacking))
    if (absent := next((directory for directory in lacking if not directory.is_present), None)) is not None:
        return _missing_disk(evidence, absent, is_index=is_index)
    first = lacking[0]
    return emptied_index(evidence, first) if is_index else _emptied_volume(evidence, _is_empty(evidence, first))


def _missing_disk(evidence: Evidence, directory: DirectoryState, *, is_index: bool) -> CookieFinding:
    fix = (
        f"Only if the index is lost permanently: create the directory, and {_INDEX_ADVICE}"
        if is_index
        else f"Only if the data is lost permanently: bkctl {' '.join(lost_disk(evidence).words)}"
    )
    return CookieFinding(
        Cause.MISSING_DISK,
        f"missing disk: {directory.path} does not exist, but bookie {evidence.bookie_id} stored data there: mount "
        f"its disk and check again. {fix}",
        verify_again(),
    )


def emptied_index(evidence: Evidence, directory: DirectoryState) -> CookieFinding:
    """An index directory is empty, but its ledger directory, from which an index can be rebuilt, is not."""
    return CookieFinding(
        Cause.EMPTIED_VOLUME,
        f"empty directory: {_is_empty(evidence, directory)}: its disk is not mounted, or was wiped. It had only an "
        "index, which can be rebuilt from the ledger directories, and these are not empty: if it is lost, "
        f"{_INDEX_ADVICE}",
        Remedy(("storage", "index", "rebuild"), has_settings=True),
    )


def _is_empty(evidence: Evidence, directory: DirectoryState) -> str:
    lost = "" if evidence.has_stored else ", and the cluster has no cookie for it either"
    return f"{directory.path} is empty, but bookie {evidence.bookie_id} stored data there{lost}"


def _emptied_volume(evidence: Evidence, what: str) -> CookieFinding:
    return CookieFinding(
        Cause.EMPTIED_VOLUME,
        f"empty directory: {what}: its disk is not mounted, or was wiped. Mount it if it has the data; if that is "
        "lost, either keep the bookie and let it restore its data from its peers: start it with "
        "dataIntegrityChecking=true and dataIntegrityStampMissingCookies=true; or decommission it, so that its ledgers "
        "are re-replicated from other bookies, and start it as a new one with empty directories",
        lost_disk(evidence),
    )


def _new_bookie(evidence: Evidence, lacking: list[DirectoryState]) -> CookieFinding | None:
    """No cookie in any directory or in the cluster: a new bookie, unless ledgers reference it."""
    filled = next((directory for directory in lacking if directory.has_files), None)
    if filled is not None:
        return _foreign_files(filled)
    count = evidence.ledgers_naming.get(evidence.bookie_id, 0)
    return _emptied_though_named(evidence, count) if count else None


def _emptied_though_named(evidence: Evidence, count: int) -> CookieFinding:
    if evidence.is_given_up:
        return CookieFinding(
            Cause.EMPTIED_VOLUME,
            f"empty directory: bookie {evidence.bookie_id} was removed from the cluster, but "
            f"{counted(count, 'ledger still names', 'ledgers still name')} it, whose loss was accepted: as a new "
            "bookie it would hide that; delete them first, or give the new bookie another ID",
            Remedy(("ledger", "list", "--bookie", evidence.bookie_id)),
        )
    return CookieFinding(
        Cause.EMPTIED_VOLUME,
        f"empty directory: the directories are empty and the cluster has no cookie for {evidence.bookie_id}, but "
        f"{counted(count, 'ledger references', 'ledgers reference')} it: as a new bookie it would report entries as "
        "missing that it has acknowledged",
        remove_bookie(evidence),
    )


def _foreign_files(directory: DirectoryState) -> CookieFinding:
    return CookieFinding(
        Cause.FOREIGN_FILES,
        f"{directory.path} has files but no cookie: configure an empty directory, or restore its VERSION file",
        verify_again(),
    )


def _outdated_version(evidence: Evidence) -> CookieFinding | None:
    """The stored cookie matches the settings, but a VERSION file does not: a change of the cookie was interrupted."""
    if is_expansion(evidence):
        return None
    for directory in evidence.directories:
        if directory.cookie is not None and evidence.expected.differences(directory.cookie):
            if not is_same_shape(evidence.expected, directory.cookie):
                return _changed_shape(evidence, directory.cookie)
            return CookieFinding(
                Cause.OUTDATED_VERSION,
                f"the VERSION file in {directory.path} has other directories than the stored cookie and the "
                f"settings ({_lists(evidence, directory.cookie)}): a change of the cookie was interrupted",
                from_config("update", evidence),
            )
    return None


def _lost_cookie(evidence: Evidence) -> CookieFinding | None:
    own = evidence.bookie_id
    if evidence.has_stored:
        return None
    if not any(directory.has_files for directory in evidence.directories):
        # A first start that was interrupted while stamping, unless ledgers reference the bookie.
        count = evidence.ledgers_naming.get(own, 0)
        return _emptied_though_named(evidence, count) if count else None
    if evidence.is_named(own):
        why, remedy = "it was deleted by hand, or when the bookie was decommissioned", from_config("create", evidence)
    else:
        why = "no ledger references it, so it was decommissioned; to use the directories again, empty them"
        remedy = Remedy(("bookie", "format"), has_settings=True)
    return CookieFinding(
        Cause.LOST_COOKIE,
        f"missing stored cookie: the cluster has no cookie for bookie {own}, but its directories have data: {why}",
        remedy,
    )


def _old_lists(evidence: Evidence, known: Cookie) -> Remedy:
    words = words_of_lists(known, evidence.expected)
    without = {*words} & {*_LISTS.values()}
    if known.index_directories is None:
        words = tuple(_without_option(words, "--index-dir"))
        without.add("--index-dir")
    return Remedy(("bookie", "start", *words), has_settings=True, without=tuple(sorted(without)))


def _without_option(words: tuple[str, ...], option: str) -> Iterator[str]:
    for name, value in zip(words[::2], words[1::2], strict=True):
        if name != option:
            yield from (name, value)


def words_of_lists(cookie: Cookie, others: Cookie) -> tuple[str, ...]:
    """Options that set the directories of a cookie, for the lists that differ from the other cookie."""
    return tuple(
        word
        for difference in cookie.differences(others)
        if difference.field in _LISTS and isinstance(difference.own, tuple)
        for path in difference.own
        for word in (_LISTS[difference.field], path)
    )


def _options_of_places(evidence: Evidence) -> Iterator[str]:
    """The lists of directories as their place files record them, as far as these directories are known."""
    for role, option in (("journal", "--journal-dir"), ("ledger", "--ledger-dir"), ("index", "--index-dir")):
        if role == "index" and evidence.expected.index_directories is None:
            continue
        at = {
            int(line.split()[1]): directory.path
            for directory in evidence.directories
            for line in directory.place or ()
            if line.startswith(role)
        }
        for position in sorted(at):
            yield from (option, at[position])


def _lists(evidence: Evidence, known: Cookie) -> str:
    differences = [each for each in evidence.expected.differences(known) if each.field in _LISTS]
    changes = {(each.other, each.own): each.field for each in reversed(differences)}
    return "; ".join(
        f"{field}: {','.join(other)}, now {','.join(own)}"
        for (other, own), field in reversed(changes.items())
        if isinstance(other, tuple) and isinstance(own, tuple)
    )


def _words(place: tuple[str, ...] | None) -> str:
    return " and ".join(f"{line} (counted from 0)" for line in place or ()) or "none"


def is_same_shape(expected: Cookie, known: Cookie) -> bool:
    """Whether the lists have equal lengths, and no directory is at another position of its list."""
    for difference in expected.differences(known):
        if not isinstance(difference.own, tuple) or not isinstance(difference.other, tuple):
            continue
        own, other = map(_normal, difference.own), map(_normal, difference.other)
        own_list, other_list = list(own), list(other)
        if len(own_list) != len(other_list):
            return False
        at = {path: position for position, path in enumerate(other_list)}
        if any(at.get(path, position) != position for position, path in enumerate(own_list)):
            return False
    return True


def _normal(path: str) -> str:
    """The path without extra slashes and dots; a relative path is not resolved."""
    return os.path.normpath(path)


DIRECTORY_RULES = (_changed_lists, _changed_places, _lacking_version, _outdated_version, _lost_cookie)
