"""Writes docs/reference/audit-report.md from the tables of an audit's report: ``make audit-page``."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

from bkctl.runtime.replication.cluster_audit import tables
from bkctl.runtime.replication.cluster_audit.tables import TABLES, AuditReport
from bkctl.runtime.replication.judge.verdict import ReplicationRow, WriteSetRow
from bkctl.spark_reports.output import WRITE_SETS
from bkctl.spark_reports.rows import REPLICATION_SCHEMA

HEAD = """# The report of an audit

This page is generated from the code by `make audit-page`.

`bkctl audit` reads the metadata of every ledger once, and judges it by one look at registrations, cookies and racks.

- `-o json` and `-o yaml` have everything. `severity`, `verdict` and the summary's fields are at the top; lists of
  ledgers end with `_ledgers` (`misplaced_ledgers`). Ids are text. Times are RFC 3339 text; their names have no `_ms`.
- `findings` are there alone: `severity`, `part` (a stable name), `ledgers` (how many), `finding`, `command` (null: none
  helps), and up to five `owners` of `owners_total`. Each ledger with missing copies or without readable metadata is in
  one of `no_live_copy`, `at_risk`, `one_copy`, `under_replicated`, `unreadable`, `lost_entries` and
  `loss_accepted`. What an inventory found is in `entries_without_copy`, `bad_copies`, `bad_open_copies`, `no_lists`,
  `unread_copies`,
  `unknown_copies`, `unknown_ends`, `copies_after_end` and `copies_elsewhere`.
- `changes` is null without `--compare`: how many ledgers are `new` (they did not exist before), `newly_bad` (new or
  worse: when they were created is unknown), `worse`, `better` and `healed`, and the `ledgers` themselves, with their
  states `before` and `now`; `has_all` is false if a report lists a part of its ledgers; `bookies_gone`,
  `bookies_back`; `counts`.
- `trend` is null unless `--compare` names a directory of reports: a row for each run, this one last, with `run` (the
  name of its directory), `judged_at`, `ledgers`, `missing_copies` (ledgers under-replicated, at risk or unavailable),
  `lost`, `copies` and `live_copies` (of entries of complete segments, all and those on registered bookies),
  `copy_bytes`, and of inventories that read all copies `bad_copies` and `lost_entries`.
- `--out DIR` has Parquet, one directory per dataset; `report.json` with all but `write_sets`, and with `changes`;
  `report.html`.

A column is only null where its type says so; one that is newer than a report is null in it, or 0. Integers have 64
bits, times are milliseconds since 1970 (UTC), bytes are payload bytes of closed ledgers. "Open" means open or in
recovery, unless both are named. E, Qw and Qa are ensemble size, write quorum and ack quorum.

## How ledgers are judged

A **write set** is the bookies that store an entry. A ledger is judged by its write sets that store entries; in the last
segment of an open ledger all count. A copy is live if its bookie is registered, writable or read-only. An unreadable
ledger is in no other number.

| state | meaning |
| --- | --- |
| `empty` | closed without entries |
| `replicated` | every write set has Qw live copies |
| `under_replicated` | some write set has fewer than Qw live copies, each at least Qa |
| `at_risk` | some has fewer than Qa, each at least one |
| `unavailable` | some has none |
| `unreadable` | its metadata cannot be read |
| lost | a write set of which no bookie is registered or has a cookie. One that is down but has a cookie may come back |
| not closable | a write set of the last segment of an open ledger has fewer than Qw - Qa + 1 registered bookies. \
Whether these answer, `bkctl ledger explain` asks |
| misplaced | a write set breaks a rule of [placement](placement.md): about racks or regions, which registered bookies \
could keep; or a bookie of it is outside of the ledger's [isolation groups](placement.md#pulsars-isolation-groups) |

A bookie that is down and in no source has an unknown rack; a write set is misplaced only if it is so whatever that is.
Without a source there are no rows of racks.
"""
_WORDS = {
    "int": "integer",
    "str": "text",
    "bool": "boolean",
    "tuple[str, ...]": "list of text",
    "tuple[tuple[str, ...], ...]": "list of lists of text",
}
_LIMITS = {name: f"{getattr(tables, name):,}" for name in ("FINDINGS_MAX", "EXAMPLES_MAX")}
_PARQUET = {"int64": "integer", "int32": "integer of 32 bits", "string": "text"}


def page() -> str:
    """The whole page."""
    limits = documented(AuditReport)
    parts = [HEAD]
    for name, kind in TABLES.items():
        words = documented(kind)
        rows = [(each.name, _type(each.type), words.get(each.name, "")) for each in msgspec.structs.fields(kind)]
        parts.append(section(name, [_plain(inspect.getdoc(kind) or ""), limits.get(name, "")], rows))
    words = documented(WriteSetRow) | documented(ReplicationRow)
    rows = [(each.name, _parquet_type(each), words.get(each.name, "")) for each in REPLICATION_SCHEMA]
    texts = ["Parquet only.", _plain(inspect.getdoc(WriteSetRow) or "")]
    return "\n".join([*parts, section(WRITE_SETS, texts, rows)])


def section(name: str, texts: Sequence[str], rows: Sequence[tuple[str, str, str]]) -> str:
    """What the page says about a table."""
    paragraphs = "\n\n".join(text for text in texts if text)
    cells = "\n".join(f"| `{column}` | {kind} | {meaning} |" for column, kind, meaning in rows)
    return f"## {name}\n\n{paragraphs}\n\n| column | type | meaning |\n| --- | --- | --- |\n{cells}\n"


def documented(kind: type) -> dict[str, str]:
    """Docstrings of the fields and properties of a class and its bases, by name."""
    found: dict[str, str] = {}
    for each in reversed(
        [base for base in kind.__mro__ if issubclass(base, msgspec.Struct) and base is not msgspec.Struct]
    ):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(definition, ast.ClassDef)
        for node, after in zip(definition.body, [*definition.body[1:], ast.Pass()], strict=True):
            if isinstance(node, ast.FunctionDef):
                found[node.name] = _cell(ast.get_docstring(node) or "")
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                text = (
                    after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
                )
                found[node.target.id] = _cell(str(text))
    return found


def _plain(text: str) -> str:
    """A docstring as Markdown, with the words of JSON and the numbers of limits."""
    for name, value in _LIMITS.items():
        text = text.replace(f"``{name}``", value)
    return text.replace("``", "`").replace("None", "null")


def _cell(text: str) -> str:
    return " ".join(_plain(text).split())


def _type(kind: Any) -> str:
    name = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    wanted = name.removesuffix(" | None")
    return _WORDS[wanted] + (" or null" if wanted != name else "")


def _parquet_type(field: Any) -> str:
    name = str(field.type)
    word = "list of text" if name.startswith("list") else _PARQUET[name]
    return f"{word} or null" if field.nullable else word


if __name__ == "__main__":
    sys.stdout.write(page())
