"""What each tier asks for; the terminal's side is in tests/commands/cluster."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, NotFoundError, PlanShown
from bkctl.commands.safety.confirmation import PLAN_TABLE, confirm_plan, show_plan
from bkctl.commands.safety.plan import Plan, load_plan
from bkctl.runtime.errors import ConflictError, RefusedError
from tests.commands.safety.conftest import WrittenContext
from tests.commands.safety.test_plan import PLAN

MakeContext = Callable[..., WrittenContext]


def of_tier(tier: int) -> Plan:
    return msgspec.structs.replace(PLAN, tier=tier)


async def settle(context: CommandContext, plan: Plan, totals: dict[str, object] | None = None) -> None:
    show_plan(context, plan, PLAN_TABLE, totals)
    await confirm_plan(context, plan)


async def only_shown(context: CommandContext, plan: Plan, totals: dict[str, object] | None = None) -> bool:
    with pytest.raises(PlanShown):
        await settle(context, plan, totals)
    return True


@pytest.mark.parametrize(
    ("tier", "settings"),
    [
        (1, {}),
        (2, {"assume_yes": True}),
        (3, {"confirmed_name": "b1"}),
        (3, {"confirmed_name": "b1", "assume_yes": True}),
    ],
)
async def test_enough(make_context: MakeContext, tier: int, settings: dict[str, object]) -> None:
    made = make_context(**settings)
    await settle(made.context, of_tier(tier))
    assert made.err.getvalue() == "one cookie goes\n"
    assert made.out.getvalue() == ""


@pytest.mark.parametrize(
    ("tier", "settings", "sentence"),
    [
        (2, {}, "use --yes"),
        (2, {"confirmed_name": "b1"}, "use --yes"),
        (3, {}, "use --confirm b1"),
        (3, {"assume_yes": True}, "--yes is not enough: use --confirm b1"),
        (3, {"confirmed_name": "b2"}, "the confirmation is 'b2', not 'b1'"),
        (3, {"confirmed_name": ""}, "the confirmation is '', not 'b1'"),
    ],
)
async def test_not_enough(
    make_context: MakeContext,
    monkeypatch: pytest.MonkeyPatch,
    tier: int,
    settings: dict[str, object],
    sentence: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(RefusedError, match=f"nothing was changed: .*{sentence}"):
        await settle(make_context(**settings).context, of_tier(tier))


async def test_a_rehearsal_shows_the_plan_and_asks_nothing(make_context: MakeContext) -> None:
    made = make_context(is_dry_run=True)
    assert await only_shown(made.context, PLAN)
    shown = json.loads(made.out.getvalue())
    assert (shown["kind"], shown["plan_hash"], shown["changes"]) == ("Plan", PLAN.plan_hash, 1)
    assert shown["items"] == [{"action": "delete", "path": "/ledgers/cookies/b1", "expected_version": 3}]
    assert shown["summary"] == ["one cookie goes"]
    with_totals = make_context(is_dry_run=True)
    assert await only_shown(with_totals.context, PLAN, {"ledgers": 7})
    assert json.loads(with_totals.out.getvalue()) == {**shown, "ledgers": 7}
    lines = make_context(is_dry_run=True, output=OutputForm.CSV)
    assert await only_shown(lines.context, PLAN)
    assert lines.out.getvalue().splitlines() == ["action,path,expected_version", "delete,/ledgers/cookies/b1,3"]
    for_people = make_context(is_dry_run=True, output=OutputForm.TABLE)
    assert await only_shown(for_people.context, PLAN)
    assert for_people.out.getvalue().startswith("one cookie goes\n"), "the sentence is a part of the result"
    assert "delete   /ledgers/cookies/b1         3" in for_people.out.getvalue()
    assert for_people.err.getvalue() == ""


async def test_a_saved_plan_is_applied_only_while_it_fits(make_context: MakeContext, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    assert await only_shown(make_context(plan_out_path=path).context, PLAN)
    assert load_plan(path) == PLAN
    applying = make_context(apply_path=path, confirmed_name="b1")
    await settle(applying.context, PLAN)
    with pytest.raises(RefusedError, match="the confirmation is"):
        await settle(make_context(apply_path=path, confirmed_name="b2").context, PLAN)
    moved = msgspec.structs.replace(PLAN, items=({**PLAN.items[0], "expected_version": 4},))
    with pytest.raises(ConflictError, match="expected_version 3 then, 4 now"):
        await settle(applying.context, moved)
    with pytest.raises(ConflictError):
        await settle(make_context(apply_path=path, is_dry_run=True).context, moved)


async def test_a_saved_plan_is_compared_with_an_empty_one_too(make_context: MakeContext, tmp_path: Path) -> None:
    empty = msgspec.structs.replace(PLAN, items=(), summary=("nothing to do",))
    path = tmp_path / "plan.json"
    assert await only_shown(make_context(plan_out_path=str(path)).context, empty)
    applying = make_context(apply_path=str(path)).context
    show_plan(applying, empty, PLAN_TABLE, None)
    assert await only_shown(make_context(plan_out_path=str(path)).context, PLAN)
    with pytest.raises(ConflictError, match="1 change then, 0 now"):
        show_plan(applying, empty, PLAN_TABLE, None)
    path.write_text("nonsense")
    with pytest.raises(InvalidArgumentError, match="not a plan saved by bkctl"):
        show_plan(applying, empty, PLAN_TABLE, None)
    path.unlink()
    with pytest.raises(NotFoundError, match="cannot read the plan"):
        show_plan(applying, empty, PLAN_TABLE, None)


async def test_a_saved_plan_without_changes_does_not_ask_to_be_applied(
    make_context: MakeContext, tmp_path: Path
) -> None:
    path = str(tmp_path / "plan.json")
    saving = make_context(plan_out_path=path)
    assert await only_shown(saving.context, PLAN)
    assert saving.err.getvalue() == (
        f"plan saved in {path}: repeat the command with --apply {path} in place of --plan-out\n"
    )
    empty = msgspec.structs.replace(PLAN, items=(), summary=("nothing to do",))
    saving = make_context(plan_out_path=path)
    assert await only_shown(saving.context, empty)
    assert saving.err.getvalue() == f"plan saved in {path}\n"


async def test_a_context_pinned_to_another_cluster_is_refused(make_context: MakeContext) -> None:
    settings = {"confirmed_name": "b1", "context_name": "prod"}
    await settle(make_context(**settings, pinned_instance_id="i").context, PLAN)
    with pytest.raises(RefusedError, match="context prod is pinned to instance id j, but this cluster's is i"):
        await settle(make_context(**settings, pinned_instance_id="j").context, PLAN)


async def test_a_plan_is_shown_whole_whatever_the_limit(make_context: MakeContext) -> None:
    for form in (OutputForm.CSV, OutputForm.JSON, OutputForm.TABLE):
        shown = [make_context(is_dry_run=True, output=form, limit=limit) for limit in (None, 0)]
        for each in shown:
            assert await only_shown(each.context, PLAN)
        assert shown[0].out.getvalue() == shown[1].out.getvalue()
        assert str(PLAN.items[0]["path"]) in shown[0].out.getvalue()
