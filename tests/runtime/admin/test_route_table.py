"""Which route a path leads to."""

from __future__ import annotations

import pytest

from bkctl.runtime.admin.messages import AdminAnswer, AdminError, AdminRequest, Problem, Route, RouteTable, text_answer


async def answer(_: AdminRequest) -> AdminAnswer:
    return text_answer("")


TABLE = RouteTable(
    [
        Route("GET", "/jobs", answer),
        Route("GET", "/jobs/{id}", answer),
        Route("DELETE", "/jobs/{id}", answer, changes=True),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "expected", "places"),
    [
        ("GET", "/jobs", "/jobs", {}),
        ("GET", "/jobs/", "/jobs", {}),
        ("GET", "/jobs/17", "/jobs/{id}", {"id": "17"}),
        ("DELETE", "/jobs/17/", "/jobs/{id}", {"id": "17"}),
        ("GET", "/jobs/%2e%2e", "/jobs/{id}", {"id": "%2e%2e"}),
    ],
)
def test_found(method: str, path: str, expected: str, places: dict[str, str]) -> None:
    route, found = TABLE.find(method, path)
    assert (route.method, route.path, found) == (method, expected, places)


@pytest.mark.parametrize(
    ("method", "path", "problem"),
    [
        ("GET", "/", Problem.NOT_FOUND),
        ("GET", "/job", Problem.NOT_FOUND),
        ("GET", "/jobs/1/2", Problem.NOT_FOUND),
        ("GET", "jobs", Problem.NOT_FOUND),
        ("POST", "/jobs", Problem.METHOD),
        ("PUT", "/jobs/1", Problem.METHOD),
    ],
)
def test_not_found(method: str, path: str, problem: Problem) -> None:
    with pytest.raises(AdminError) as caught:
        TABLE.find(method, path)
    assert caught.value.problem is problem
