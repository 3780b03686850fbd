"""The answers of the admin interface have the shape of a Java bookie's: status, keys, types of the values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from bkctl.java_keys import USED
from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import PROMETHEUS_PROVIDER, AdminConfig, BookieConfig
from tests.runtime.bookie.admin.asking import Answered, local_asker

GOLDEN = json.loads(Path("tests/golden/rest/bookie-4.18.0.json").read_text())

NAMED_BY_DATA: Final = ("/config/server_config", "/list_bookie_info", "/last_log_mark")
"""Objects whose keys are data: of settings, bookies, journals."""

ERRORS_ARE_JSON: Final = "errors are JSON, with a status that says what is wrong"
SETTINGS_ARE_FILES: Final = "settings are changed in files, where they survive a restart, and applied with SIGHUP"

DIFFERENCES: Final = {
    ("GET", "/", None): (404, ERRORS_ARE_JSON),
    ("GET", "/nosuch", None): (404, ERRORS_ARE_JSON),
    ("GET", "/api/v1/nosuch", None): (404, ERRORS_ARE_JSON),
    ("PUT", "/metrics", None): (405, ERRORS_ARE_JSON),
    ("POST", "/metrics", None): (405, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/config/server_config", '{"minorCompactionInterval":"7200"}'): (405, SETTINGS_ARE_FILES),
    ("PUT", "/api/v1/config/server_config", '{"unknownKeyX":"1"}'): (405, SETTINGS_ARE_FILES),
    ("PUT", "/api/v1/config/server_config", "notjson"): (405, SETTINGS_ARE_FILES),
    ("PUT", "/api/v1/config/server_config", None): (405, SETTINGS_ARE_FILES),
    ("POST", "/api/v1/config/server_config", "{}"): (405, SETTINGS_ARE_FILES),
    ("POST", "/api/v1/bookie/state", None): (405, ERRORS_ARE_JSON),
    ("POST", "/api/v1/bookie/gc_details", None): (405, ERRORS_ARE_JSON),
    ("POST", "/api/v1/bookie/info", None): (405, ERRORS_ARE_JSON),
    ("POST", "/api/v1/bookie/is_ready", None): (405, ERRORS_ARE_JSON),
    ("POST", "/api/v1/bookie/sanity", None): (405, ERRORS_ARE_JSON),
    ("POST", "/api/v1/bookie/gc", None): (405, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/bookie/gc", "nojson"): (400, ERRORS_ARE_JSON),
    ("GET", "/api/v1/bookie/gc/resume_compaction", None): (405, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/bookie/gc/suspend_compaction", '{"suspendMajor":"true"}'): (
        200,
        "strings are booleans too, as Java's documentation has them",
    ),
    ("PUT", "/api/v1/bookie/gc/suspend_compaction", "{}"): (400, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/bookie/gc/suspend_compaction", None): (400, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/bookie/gc/resume_compaction", "{}"): (400, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/bookie/gc/resume_compaction", None): (400, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/bookie/state/readonly", None): (400, ERRORS_ARE_JSON),
    ("PUT", "/api/v1/bookie/state/readonly", "nojson"): (400, ERRORS_ARE_JSON),
}
"""Requests whose answers differ: our status, and the reason."""


def shape(path: str, text: str) -> object:
    """Keys and types of a JSON answer; other text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return "metrics" if path == "/metrics" and text.startswith("#") else text
    if path.endswith(NAMED_BY_DATA) and isinstance(value, dict):
        return {"*": sorted({type(each).__name__ for each in value.values()})}
    return types_of(value)


def types_of(value: Any) -> object:
    if isinstance(value, dict):
        return {key: types_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [types_of(each) for each in value]
    return type(value).__name__


async def test_each_answer_has_the_shape_of_java_s(bookie_config: BookieConfig) -> None:
    differing = set()
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        for call in GOLDEN["calls"]:
            method, path, body = call["method"], call["path"], call.get("request_body")
            answer = await admin.ask(method, path, body)
            place = path.partition("?")[0].rstrip("/")
            is_same = answer.status == call["status"] and shape(place, answer.text) == shape(place, call["body"])
            if (method, path, body) in DIFFERENCES:
                assert not is_same, f"{method} {path} {body} answers as Java does"
                assert answer.status == DIFFERENCES[method, path, body][0], (method, path, body, answer)
                differing.add((method, path, body))
                require_json_error(answer)
            else:
                assert is_same, (method, path, body, answer, call)
    assert differing == DIFFERENCES.keys()


def require_json_error(answer: Answered) -> None:
    if answer.status >= 400:
        assert answer.headers["Content-Type"] == "application/json"
        assert set(answer.json) == {"error", "problem"}


async def test_settings_have_java_s_keys_and_units(bookie_config: BookieConfig) -> None:
    admin_config = AdminConfig(metrics_provider=PROMETHEUS_PROVIDER, scrape_port=0)
    config = msgspec.structs.replace(bookie_config, admin=admin_config)
    async with running_bookie(config) as server, local_asker(config) as admin:
        found = (await admin.get("/api/v1/config/server_config")).json
        java = next(json.loads(call["body"]) for call in GOLDEN["calls"] if call["path"].endswith("server_config"))
        assert java.keys() & USED <= found.keys()
        assert found["ledgerDirectories"] == config.storage.ledger_directories[0]
        assert found["metadataServiceUri"] == config.metadata_uri
        assert found["flushInterval"] == "3600000"
        assert found["allowLoopback"] == "true"
        assert found["diskUsageThreshold"] == "0.95"
        assert found["gcMetadataOpRateLimit"] == "1000"
        slower = msgspec.structs.replace(config.garbage_collection, metadata_operations_per_s_max=7)
        server.reload(msgspec.structs.replace(config, garbage_collection=slower, flush_interval_s=1))
        found = (await admin.get("/api/v1/config/server_config")).json
        assert found["gcMetadataOpRateLimit"] == "7"
        assert found["flushInterval"] == "3600000", "it takes effect after a restart"
