"""The files in docs/examples: they can be parsed, and the commands in them are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bkctl.app import build_app
from tests.bkctl.test_main import leaves
from tests.processes import run_bkctl
from tests.test_repository import ROOT

EXAMPLES = Path(ROOT) / "docs" / "examples"
JOB = EXAMPLES / "kubernetes-remove-bookie.yml"
COMMANDS: dict[str, Any] = dict(leaves(build_app()))


def job_containers() -> list[dict[str, Any]]:
    """Containers of the Job, in the order in which they run."""
    (job,) = (each for each in yaml.safe_load_all(JOB.read_text()) if each["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    return [*pod["initContainers"], *pod["containers"]]


def words_of(container: dict[str, Any]) -> list[str]:
    """Arguments of bkctl, with variables replaced as Kubernetes does."""
    values = {f"$({each['name']})": each["value"] for each in container["env"]}
    return [values.get(word, word) for word in container["args"]]


@pytest.mark.parametrize("name", sorted(each.name for each in EXAMPLES.glob("*.yml")))
def test_yaml_files_can_be_parsed(name: str) -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / name).read_text()))
    assert documents
    assert all(isinstance(each, dict) for each in documents)


def test_the_job_drains_scales_and_decommissions() -> None:
    drain, scale, decommission = job_containers()
    assert scale["command"][:2] == ["kubectl", "scale"]
    for container in (drain, decommission):
        name, *words = words_of(container)
        assert name == "decommission"
        with COMMANDS["bkctl decommission"].make_context(
            name, [*words]
        ) as parsed:  # a wrong option or value is an error
            assert (*parsed.params["bookie_ids"], parsed.params["if_exists"]) == (container["env"][0]["value"], True)
            assert parsed.params["drain_only"] is (container is drain)
        assert "--yes" in words
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        (state,) = (each["value"] for each in container["env"] if each["name"] == "BKCTL_STATE_DIR")
        assert state in [each["mountPath"] for each in container["volumeMounts"]]


def test_the_steps_of_the_job_succeed_where_nothing_is_left_to_do(metadata_uri: str, tmp_path: Path) -> None:
    made = run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    for container in (each for each in job_containers() if "args" in each):
        variables = {each["name"]: each["value"] for each in container["env"]}
        variables |= {"BKCTL_METADATA_URI": metadata_uri, "BKCTL_STATE_DIR": str(tmp_path / "state")}
        words = words_of(container)
        done = run_bkctl(*words, **variables)
        assert done.exit_code == 0, done.stderr
        assert done.json()["is_complete"] is True
        assert "nothing is left to do" in done.stderr
        mistyped = run_bkctl(*(each for each in words if each != "--if-exists"), **variables)
        assert mistyped.exit_code == 4, "without the option an unknown bookie is an error"


def test_the_image_runs_as_a_user_without_rights() -> None:
    text = (EXAMPLES / "Dockerfile").read_text()
    assert "the project does not build or publish it" in text.splitlines()[0]
    assert "USER 10001:10001" in text
