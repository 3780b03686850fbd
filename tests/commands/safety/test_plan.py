from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.safety.plan import Plan, load_plan, require_same_plan, save_plan
from bkctl.runtime.errors import ConflictError, RefusedError

PLAN = Plan(
    command="cookie delete",
    tier=3,
    root="/ledgers",
    instance_id="i",
    subject="b1",
    summary=("one cookie goes",),
    items=({"action": "delete", "path": "/ledgers/cookies/b1", "expected_version": 3},),
)


def test_the_hash_is_that_of_the_whole_json() -> None:
    longer = msgspec.structs.replace(PLAN, items=(*PLAN.items, {"b": 1, "a": [2]}))
    for plan in (PLAN, longer, Plan(root="/x", instance_id=None)):
        fields = msgspec.to_builtins(plan)
        del fields["summary"], fields["findings"], fields["refusal"]
        encoded = msgspec.json.encode(fields, order="sorted")
        assert plan.plan_hash == hashlib.sha256(encoded).hexdigest()
        assert ("items" in plan.body(), plan.body()["changes"]) == (False, len(plan.items))


def test_a_saved_plan_comes_back_and_is_private(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    save_plan(PLAN, path)
    assert load_plan(path) == PLAN
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["plan.json"]


def test_the_hash_is_of_what_is_done_not_of_what_is_said() -> None:
    assert msgspec.structs.replace(PLAN, summary=()).plan_hash == PLAN.plan_hash
    for changed in ({"subject": "b2"}, {"items": ()}, {"root": "/x"}, {"arguments": {"force": True}}):
        assert msgspec.structs.replace(PLAN, **changed).plan_hash != PLAN.plan_hash


def test_a_plan_altered_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(PLAN, str(path))
    path.write_text(path.read_text().replace("b1", "b2"))
    with pytest.raises(RefusedError, match="altered"):
        load_plan(str(path))


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", json.dumps({"apiVersion": "bkctl/v1", "kind": "Plan"}), "\xff", '{"kind":"\xff"}']
)
def test_anything_else_is_no_plan(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidArgumentError, match="not a plan"):
        load_plan(str(path))
    with pytest.raises(NotFoundError, match="cannot read"):
        load_plan(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"instance_id": "j"}, "instance id: it says i, now it is j"),
        (
            {"items": ({"action": "delete", "path": "/ledgers/cookies/b1", "expected_version": 4},)},
            "/ledgers/cookies/b1: expected_version 3 then, 4 now",
        ),
        ({"items": (*PLAN.items, {"action": "delete", "path": "/x"})}, "1 change then, 2 now"),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, object], told: str) -> None:
    require_same_plan(PLAN, msgspec.structs.replace(PLAN, summary=("in other words",)))
    with pytest.raises(ConflictError) as raised:
        require_same_plan(PLAN, msgspec.structs.replace(PLAN, **changes))
    assert str(raised.value) == f"nothing was changed: the saved plan no longer fits ({told})"
