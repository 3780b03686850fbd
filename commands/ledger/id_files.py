"""Files of ledger ids: one per line, in any form that the command line takes; what follows a # is a remark."""

from __future__ import annotations

from commands.errors import InvalidArgumentError
from commands.parse import parse_ledger_id


def read_ledger_ids(path: str) -> list[int]:
    """Ids of the file in its order, each once; InvalidArgumentError names the line that holds none.

    Of a CSV file, as ``bkctl ledger list -o csv`` writes it, the first column counts, below its heading.
    """
    ids: dict[int, None] = {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                text = line.partition("#")[0].partition(",")[0].strip()
                if not text or (number == 1 and text == "ledger_id"):
                    continue
                try:
                    ids[parse_ledger_id(text)] = None
                except InvalidArgumentError as error:
                    raise InvalidArgumentError(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the ledger ids in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} holds no text: no ledger ids") from error
    return list(ids)


def all_ledger_ids(texts: list[str] | None, path: str | None = None) -> list[int]:
    """Ids of the command line and then of the file, each once; InvalidArgumentError."""
    given = [parse_ledger_id(text) for text in texts or ()]
    return list(dict.fromkeys([*given, *(() if path is None else read_ledger_ids(path))]))
