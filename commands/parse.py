"""Converts text from the command line, and from files given there, to values. Every error shows what is valid."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable

from bkctl.commands.errors import InvalidArgumentError, unreadable_file
from bkctl.storage.adapters.given_files import DATA_BYTES_MAX, SMALL_BYTES_MAX, read_given_file
from bkctl.storage.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkctl.storage.setting import DURATION_S_MAX

_DECIMAL = re.compile(r"[0-9]{1,39}")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,32}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_AGO = re.compile(r"([0-9]{1,9})(s|m|h|d|w)(?: ago)?")
_SECONDS_AGO = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZE = re.compile(r"([0-9]{1,19})([kmg]?)i?b?", re.IGNORECASE)
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%")
_RANGE = re.compile(r"([0-9]{1,19})(?:(-)([0-9]{1,19})?)?")


def parse_ledger_id(text: str) -> int:
    """Ledger id from decimal, ``0x`` hexadecimal, or the UUID form of Java's formatter (high half zero)."""
    if _UUID.fullmatch(text):
        ledger_id = int(text.replace("-", ""), 16)
    elif _HEXADECIMAL.fullmatch(text):
        ledger_id = int(text, 16)
    elif _DECIMAL.fullmatch(text):
        ledger_id = int(text)
    else:
        raise InvalidArgumentError(
            f"'{text}' is not a ledger id: use a decimal number, 0x and hexadecimal digits, or a UUID"
        )
    if ledger_id > LEDGER_ID_MAX:
        raise InvalidArgumentError(f"ledger id '{text}' is too large: the maximum is {LEDGER_ID_MAX}")
    return ledger_id


def parse_stored_ledger_id(text: str) -> int:
    """Like ``parse_ledger_id``, or a negative decimal number: files may contain such ids, the metadata never does."""
    number = text.removeprefix("-")
    if number == text or not _DECIMAL.fullmatch(number):
        return parse_ledger_id(text)
    return max(-int(number), -LEDGER_ID_MAX - 1)


def parse_duration_s(text: str, *, is_zero_allowed: bool = False) -> float:
    """Seconds from ``500ms``, ``10``, ``10s``, ``2m`` or ``1h``; more than zero, at most DURATION_S_MAX."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else -1.0
    if seconds < 0 or (seconds == 0 and not is_zero_allowed):
        raise InvalidArgumentError(f"'{text}' is not a duration: use a positive number with ms, s, m or h, like 30s")
    if seconds > DURATION_S_MAX:
        raise InvalidArgumentError(f"'{text}' is too long: use at most {DURATION_S_MAX // 3600}h (100 years)")
    return seconds


def parse_moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 from ``2026-01-31``, ``2026-01-31T12:00:00Z``, or an age like ``90m``, ``12h``, ``7d``.

    A time without a zone is UTC, as bkctl prints times.
    """
    text = text.strip()
    if match := _AGO.fullmatch(text):
        return now_ms - int(match[1]) * _SECONDS_AGO[match[2]] * 1000
    try:
        moment = datetime.datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"'{text}' is not a time: use 2026-01-31, 2026-01-31T12:00:00Z, or an age like 12h or 7d"
        ) from None


def parse_label(text: str) -> tuple[str, bytes | None]:
    """Key and value of custom metadata from ``key=value``; the value is None for a key alone."""
    key, separator, value = text.partition("=")
    if not key:
        raise InvalidArgumentError(f"'{text}' is not a label: use KEY=VALUE, or KEY for any value")
    return key, value.encode() if separator else None


def parse_size_bytes(text: str) -> int:
    """Bytes from ``1024``, ``4k``, ``1MiB`` or ``2g``; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(f"'{text}' is not a size: use a number with k, m or g, like 4k")
    return int(match[1]) * _BYTES[match[2].lower()]


NO_LIMIT = "none"


def parse_bytes_per_second(text: str) -> int:
    """Bytes per second, more than zero, from ``200MiB/s`` or ``200MiB``."""
    try:
        bytes_per_second = parse_size_bytes(text.strip().removesuffix("/s"))
    except InvalidArgumentError:
        bytes_per_second = 0
    if bytes_per_second == 0:
        raise InvalidArgumentError(f"'{text}' is not a rate: use a size per second, like 200MiB/s, or {NO_LIMIT}")
    return bytes_per_second


def parse_rate_limit(text: str | None) -> int | None:
    """Bytes per second as above; None for ``none``, or if nothing is given: no limit."""
    return None if text is None or text.strip() == NO_LIMIT else parse_bytes_per_second(text)


def parse_share(text: str) -> float:
    """A fraction, above 0 and at most 1, from a percentage like ``1%``."""
    match = _PERCENT.fullmatch(text.strip())
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share <= 1:
        raise InvalidArgumentError(f"'{text}' is not a share: use a percentage above 0%, up to 100%, like 1%")
    return share


SEED_MAX = 2**32 - 1
"""Of ``--seed``: four bytes."""


def drawn_seed(given: int | None) -> int:
    """The seed of a sample: the given one, else another each time."""
    return int.from_bytes(os.urandom(4)) if given is None else given


def parse_entry_range(text: str | None) -> tuple[int, int | None]:
    """First and last entry (both included; None: up to the last confirmed) from ``5``, ``5-9``, ``5-`` or nothing."""
    if text is None:
        return 0, None
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"'{text}' is not an entry range: use FIRST, FIRST-LAST or FIRST-")
    first = int(match[1])
    last = first if match[2] is None else (int(match[3]) if match[3] else None)
    if last is not None and last < first:
        raise InvalidArgumentError(f"entry range '{text}' ends before it starts")
    if max(first, last or 0) > ENTRY_ID_MAX:
        raise InvalidArgumentError(f"entry range '{text}' is too large: the maximum is {ENTRY_ID_MAX}")
    return first, last


def parse_bookie_id(text: str) -> str:
    """Check a bookie id and return it. An invalid id would make every Java client hang, so it is refused."""
    from bkctl.runtime.ledger.metadata import is_valid_bookie_id

    if not is_valid_bookie_id(text):
        raise InvalidArgumentError(
            f"'{text}' is not a valid bookie id: use letters, digits, '.', '-', '_', ':' (not '.', '..', 'readonly')"
        )
    return text


def near_miss(name: str, known: Iterable[str], *, similarity_min: float) -> str | None:
    """The known name most similar to ``name``, if the similarity is at least this (1.0: equal but for case)."""
    from difflib import get_close_matches  # most invocations need no suggestion

    by_lower_case = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=similarity_min)
    return by_lower_case[found[0]] if found else None


_LEDGER_VARIABLE = "BKCTL_LEDGER_PASSWORD"
PASSWORD_HELP = f"File with the ledger password (default: ${_LEDGER_VARIABLE})"


def read_named_file(path: str, what: str = "", bytes_max: int = SMALL_BYTES_MAX) -> bytes:
    """A file of the command line; ``what``: how an error names it. NotFoundError, InvalidArgumentError."""
    try:
        return read_given_file(path, bytes_max)
    except OSError as error:
        raise unreadable_file(f"{what} {path}".lstrip(), error) from error


def read_password(path: str | None) -> bytes | None:
    """The password, without the line end after it; None if there is none."""
    if path is None:
        text = os.environ.get(_LEDGER_VARIABLE)
        return None if text is None else text.encode()
    return read_named_file(path, "the password file").removesuffix(b"\n").removesuffix(b"\r")


def read_ledger_ids(path: str) -> list[int]:
    """Ids of the file in its order, each once; InvalidArgumentError shows an invalid line. ``-`` is stdin.

    Of a CSV file, as ``bkctl ledger list -o csv`` writes it, only the first column counts, without its heading.
    """
    ids: dict[int, None] = {}
    path = "/dev/stdin" if path == "-" else path
    try:
        for number, line in enumerate(read_named_file(path, "the ledger ids in", DATA_BYTES_MAX).split(b"\n"), 1):
            text = line.decode().partition("#")[0].partition(",")[0].strip()
            if not text or (number == 1 and text == "ledger_id"):
                continue
            try:
                ids[parse_ledger_id(text)] = None
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{path}, line {number}: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not a text file: no ledger ids") from error
    return list(ids)


def all_ledger_ids(texts: list[str] | None, path: str | None = None) -> list[int]:
    """Ids of the command line and then of the file, each once; InvalidArgumentError."""
    given = [parse_ledger_id(text) for text in texts or ()]
    return list(dict.fromkeys([*given, *(() if path is None else read_ledger_ids(path))]))
