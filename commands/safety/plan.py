"""A plan: what a command is about to change, node by node, computed before the confirmation.

Saved as JSON: ``{"apiVersion", "kind": "Plan", <fields>, "plan_hash"}``. The hash is SHA-256 over the sorted JSON of
all fields but ``summary``, ``findings`` and ``refusal``, which are for display. Two plans with the same hash do the
same to the same versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import read_named_file
from bkctl.commands.rendering import API_VERSION, envelope, json_parts
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.runtime.new_file import whole_file
from bkctl.storage.adapters.given_files import DATA_BYTES_MAX
from bkctl.storage.json_text import JsonTextError, decode_json
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, duration

_KIND = "Plan"
_sorted_json = msgspec.json.Encoder(order="sorted")


class PlanFinding(msgspec.Struct, frozen=True):
    """What the operator should know before agreeing to a plan: what it cannot do, and which rules it breaks."""

    severity: Severity
    finding: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a command would do, and to which cluster.

    ``command`` and ``tier`` (of its effect: 1 reversible, 2 harmful, 3 destructive) default to those of the running
    command. ``subject`` is the name that must be typed to confirm a destructive plan. ``items`` are the changes in
    order; a sequence may make them when they are needed, as there may be millions. Each has JSON values only:
    ``action`` (``create``, ``set``, ``delete`` or a word of the command's own), ``path``, ``expected_version`` (None:
    there is no node), and everything else that determines the change. ``arguments`` are options that determine the plan
    as a whole. ``refusal``: the sentence with which the command refuses to carry it out.
    """

    command: str = ""
    tier: int = 0
    root: str
    instance_id: str | None
    subject: str = ""
    summary: tuple[str, ...] = ()
    findings: tuple[PlanFinding, ...] = ()
    items: Sequence[dict[str, Any]] = ()
    arguments: dict[str, Any] = {}
    refusal: str | None = None

    def emptied(self, sentence: str) -> Plan:
        """The same without changes; ``sentence``: why there is nothing to do."""
        return msgspec.structs.replace(self, summary=(sentence,), items=())

    @property
    def plan_hash(self) -> str:
        """Identity of the plan, 64 hexadecimal digits."""
        fields = self._without_items()
        del fields["summary"], fields["findings"], fields["refusal"]
        digest = hashlib.sha256()
        for position, name in enumerate(sorted([*fields, "items"])):
            digest.update(b"," if position else b"{")
            digest.update(_sorted_json.encode(name) + b":")
            for part in self._items_json() if name == "items" else (_sorted_json.encode(fields[name]),):
                digest.update(part)
        digest.update(b"}")
        return digest.hexdigest()

    def _without_items(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, items=()))
        del fields["items"]
        return fields

    def _items_json(self) -> Iterator[bytes]:
        """The JSON of the items, one after another: all of them at once may take much memory."""
        yield b"["
        for position, item in enumerate(self.items):
            yield (b"," if position else b"") + _sorted_json.encode(item)
        yield b"]"

    def body(self) -> dict[str, Any]:
        """The plan as a structured result, without its items."""
        return {**self._without_items(), "changes": len(self.items), "plan_hash": self.plan_hash}


def time_at_limit(time_s: float, limit: str) -> tuple[str, ...]:
    """How long a plan takes at least because of a limit, for its summary; nothing for less than a second."""
    return (f"takes at least {duration(time_s)} at the limit of {limit}",) if time_s >= 1 else ()


def save_plan(plan: Plan, path: str) -> None:
    """Write the plan to a private file; OSError."""
    fields = msgspec.to_builtins(msgspec.structs.replace(plan, items=()))
    fields |= {"items": plan.items, "plan_hash": plan.plan_hash}
    with whole_file(path) as write:
        for part in json_parts(envelope(_KIND, fields)):
            write(part.encode())
        write(b"\n")


def load_plan(path: str) -> Plan:
    """Read a saved plan; NotFoundError, InvalidArgumentError for an invalid file, RefusedError when it was edited."""
    try:
        fields = decode_json(read_named_file(path, "the plan", DATA_BYTES_MAX), dict[str, Any])
        if (fields.pop("apiVersion", None), fields.pop("kind", None)) != (API_VERSION, _KIND):
            raise InvalidArgumentError(f"{path} is not a plan saved by bkctl")
        saved_hash = fields.pop("plan_hash", None)
        plan = msgspec.convert(fields, Plan)
        plan = msgspec.structs.replace(plan, items=tuple(plan.items))
    except (JsonTextError, msgspec.ValidationError) as error:
        raise InvalidArgumentError(f"{path} is not a plan saved by bkctl: {error}") from error
    if plan.plan_hash != saved_hash:
        raise RefusedError(f"nothing was changed: {path} was changed after bkctl saved it")
    return plan


def require_same_plan(saved: Plan, fresh: Plan) -> None:
    """ConflictError with the first difference unless the fresh plan does exactly the same as the saved one."""
    if saved.plan_hash == fresh.plan_hash:
        return
    raise ConflictError(f"nothing was changed: the saved plan no longer fits ({_first_difference(saved, fresh)})")


def require_unchanged(plan: Plan, again: Plan) -> None:
    """ConflictError with the first difference unless a second look finds the same plan."""
    if not again.items:  # the goal is reached, for example by another operator
        raise ConflictError(f"nothing was changed: {'; '.join(again.summary)}")
    if plan.plan_hash != again.plan_hash:
        raise ConflictError(
            f"nothing was changed: something has changed since the plan was made ({_first_difference(plan, again)}): "
            "run the command again"
        )


def _first_difference(saved: Plan, fresh: Plan) -> str:
    for field in ("command", "root", "instance_id", "subject", "tier"):
        if getattr(saved, field) != getattr(fresh, field):
            return f"{field.replace('_', ' ')}: it says {getattr(saved, field)}, now it is {getattr(fresh, field)}"
    if saved.arguments != fresh.arguments:
        return f"arguments: {_changes(saved.arguments, fresh.arguments)}"
    for then, fresh_item in zip(saved.items, fresh.items, strict=False):
        if then != fresh_item:
            changes = _changes(then, fresh_item)
            return (
                f"{then.get('path')}: {changes}"
                if changes
                else f"{then.get('path')} then, {fresh_item.get('path')} now"
            )
    return f"{counted(len(saved.items), 'change')} then, {len(fresh.items):,} now"


def _changes(then: dict[str, Any], now: dict[str, Any]) -> str:
    """The values that differ, but for paths."""
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key) and key != "path"]
    return ", ".join(f"{key} {then.get(key)} then, {now.get(key)} now" for key in changed)
