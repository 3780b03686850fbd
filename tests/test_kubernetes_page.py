"""The manifests of the page about Kubernetes are valid, refer to each other, and their commands and probes work."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bkctl.app import build_app
from tests.bkctl.test_main import leaves
from tests.commands.bookie.admin_bookie import running_bookie
from tests.processes import COMMAND_TIMEOUT_S, LOOPBACK, Cluster, free_port, run_bkctl, start_bkctl
from tests.test_repository import read
from tests.until import wait_until

DIRECTORY = "docs/examples/kubernetes"
FILES = ("bookies", "autorecovery", "remove-bookie", "prometheus")
COMMANDS: dict[str, Any] = dict(leaves(build_app()))


def manifests() -> list[dict[str, Any]]:
    """All objects of the files."""
    documents = [document for name in FILES for document in yaml.safe_load_all(read(f"{DIRECTORY}/{name}.yml"))]
    return [document for document in documents if "kind" in document]


MANIFESTS = {f"{each['kind']} {each['metadata']['name']}": each for each in manifests()}
IDS = sorted(MANIFESTS)
WORKLOADS = ("StatefulSet bookie", "Deployment autorecovery", "Job remove-bookie-3")


def pod_of(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = MANIFESTS[name]["spec"]["template"]["spec"]
    return pod


def variables_of(container: dict[str, Any], **known: str) -> dict[str, Any]:
    """Environment of a container, texts; values may refer to those before, as in Kubernetes."""
    found: dict[str, Any] = dict(known)
    for each in container["env"]:
        if "value" in each:
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], each["value"])
    return found


def words_of(container: dict[str, Any]) -> list[str]:
    """Arguments of bkctl."""
    variables = variables_of(container, POD_NAME="bookie-0")
    return [re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], word) for word in container["args"]]


SCHEMA: dict[str, Any] = json.loads(read("tests/kubernetes/schemas.json"))


def problems(document: dict[str, Any]) -> list[str]:
    """What is wrong, by the schema of the kind that the document names."""
    schema = {**SCHEMA, "$ref": f"#/$defs/{document['kind']}"}
    jsonschema.Draft202012Validator.check_schema(schema)
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


def test_the_files_have_a_whole_cluster_and_the_page_links_them() -> None:
    assert set(WORKLOADS) <= MANIFESTS.keys()
    page = read("docs/guide/kubernetes.md")
    assert sorted(re.findall(r"\]\(\.\./examples/kubernetes/([\w-]+)\.yml\)", page)) == sorted(FILES)


@pytest.mark.parametrize("name", IDS)
def test_a_manifest_is_valid(name: str) -> None:
    assert problems(MANIFESTS[name]) == []


CONTAINER = ("spec", "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (("spec", "replica"), 3, "'replica' was unexpected"),
        ((*CONTAINER, "env", 0), {"name": "A", "value": 1}, "1 is not of type 'string'"),
        ((*CONTAINER, "livenessProbe", "httpGet"), {"path": "/"}, "'port' is a required"),
        (("spec", "podManagementPolicy"), "parallel", "'parallel' is not one of"),
    ],
)
def test_a_mistake_is_found(at: tuple[Any, ...], value: Any, said: str) -> None:
    document = json.loads(json.dumps(MANIFESTS["StatefulSet bookie"]))
    place = document
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = value
    assert any(said in each for each in problems(document)), problems(document)


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Workload, its pod and a container."""
    for name in WORKLOADS:
        pod = pod_of(name)
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield name, pod, container


def test_names_in_the_manifests_exist() -> None:
    bookies = MANIFESTS["StatefulSet bookie"]["spec"]
    claims = {each["metadata"]["name"] for each in bookies["volumeClaimTemplates"]}
    for name, pod, container in containers():
        volumes = {each["name"] for each in pod["volumes"]} | (claims if name == "StatefulSet bookie" else set())
        mounts = {each["name"]: each["mountPath"] for each in container.get("volumeMounts", ())}
        assert set(mounts) <= volumes, name
        ports = {each["name"] for each in container.get("ports", ())}
        probes = [container[each] for each in ("startupProbe", "readinessProbe", "livenessProbe") if each in container]
        assert {probe["httpGet"]["port"] for probe in probes} <= ports
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for variable, value in variables_of(container, POD_NAME="bookie-0").items() if "env" in container else ():
            if value.startswith("/"):
                assert value.startswith(tuple(mounts.values())), f"{variable} is on no volume"
        assert pod["securityContext"]["runAsUser"] == 10001
    labels = {name: MANIFESTS[name]["spec"]["template"]["metadata"]["labels"] for name in WORKLOADS[:2]}
    for name, found in labels.items():
        assert MANIFESTS[name]["spec"]["selector"]["matchLabels"] == found
    assert MANIFESTS["Service bookie"]["spec"]["selector"] == labels["StatefulSet bookie"]
    assert MANIFESTS["PodDisruptionBudget bookie"]["spec"]["selector"]["matchLabels"] == labels["StatefulSet bookie"]
    for kept in re.findall(r"regex: (\w+);(\w+)", read(f"{DIRECTORY}/prometheus.yml")):
        assert ({"app": kept[0]} in labels.values(), kept[1]) == (True, "admin")


def get(port: int, path: str) -> int:
    """Status of an answer over the admin port; 0 if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}") as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def put_read_only(port: int, token: str) -> int:
    """Status of a change of the mode over the admin port."""
    url = f"http://{LOOPBACK}:{port}/api/v1/bookie/state/readonly"
    request = urllib.request.Request(url, b'{"readOnly": true}', {"Authorization": f"Bearer {token}"}, method="PUT")
    try:
        with urllib.request.urlopen(request) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.cluster
@pytest.mark.parametrize("name", WORKLOADS[:2])
def test_a_pod_starts_and_its_probes_succeed(name: str, cluster: Cluster, tmp_path: Path) -> None:
    (container,) = pod_of(name)["containers"]
    (tmp_path / "admin-token").write_text("token\n")
    (tmp_path / "admin-token").chmod(0o440)
    (tmp_path / "run").mkdir()
    here = {
        "BKCTL_BOOKIE_ADVERTISED_ADDRESS": LOOPBACK,
        "BKCTL_METADATA_URI": cluster.metadata_uri,
        "BKCTL_BOOKIE_JOURNAL_DIRS": str(tmp_path / "journal"),
        "BKCTL_BOOKIE_LEDGER_DIRS": str(tmp_path / "ledgers"),
        "BKCTL_BOOKIE_ADMIN_HTTP_HOST": LOOPBACK,
        "BKCTL_AUTORECOVERY_ADMIN_HTTP_HOST": LOOPBACK,
        "BKCTL_ADMIN_TOKEN_FILE": str(tmp_path / "admin-token"),
        "BKCTL_STATE_DIR": str(tmp_path / "state"),
        "RUNTIME_DIRECTORY": str(tmp_path / "run"),
    }
    variables = variables_of(container, POD_NAME="bookie-0")
    variables |= {each: value for each, value in here.items() if each in variables}
    ports = {each["name"]: free_port() for each in container["ports"]}
    group = "BOOKIE" if name == "StatefulSet bookie" else "AUTORECOVERY"
    of_this_test = {f"BKCTL_{group}_ADMIN_HTTP_PORT": str(ports["admin"])}
    if "bookie" in ports:
        of_this_test |= {"BKCTL_BOOKIE_PORT": str(ports["bookie"]), "BKCTL_BOOKIE_IS_LOOPBACK_ALLOWED": "true"}
    probes = [container[each]["httpGet"]["path"] for each in container if each.endswith("Probe")]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        server = start_bkctl(*words_of(container), stderr=stderr, variables=variables | of_this_test)
    try:
        wait_until(lambda: all(get(ports["admin"], each) == 200 for each in probes), process=server, tell=log.read_text)
        written = log.read_text().rpartition("\n")[0]
        assert all(json.loads(line)["Timestamp"] for line in written.splitlines())
        if "bookie" in ports:  # what the Job does from another machine: the mounted token allows a change
            assert put_read_only(ports["admin"], "wrong") == 401
            assert put_read_only(ports["admin"], "token") in {200, 202}
            assert all(get(ports["admin"], each) == 200 for each in probes)
    finally:
        server.terminate()
        assert server.wait(COMMAND_TIMEOUT_S) == 0, log.read_text()


def job_containers() -> list[dict[str, Any]]:
    """Containers of the Job, in the order in which they run."""
    pod = pod_of("Job remove-bookie-3")
    return [*pod["initContainers"], *pod["containers"]]


def test_the_job_drains_scales_and_decommissions() -> None:
    drain, scale, decommission = job_containers()
    replicas = MANIFESTS["StatefulSet bookie"]["spec"]["replicas"]
    assert scale["command"] == ["kubectl", "scale", "statefulset/bookie", f"--replicas={replicas - 1}"]
    for container in (drain, decommission):
        name, *words = words_of(container)
        assert name == "decommission"
        command = COMMANDS["bkctl decommission"]
        with command.make_context(name, [*words]) as parsed:  # a wrong option or value is an error
            expected = f"bookie-{replicas - 1}.bookie.bookkeeper.svc.cluster.local:3181"
            assert (*parsed.params["bookie_ids"], parsed.params["if_exists"]) == (expected, True)
            assert parsed.params["drain_only"] is (container is drain)
        assert "--yes" in words


@pytest.mark.cluster
def test_the_job_sends_the_token_to_the_bookie_that_it_drains(cluster: Cluster, tmp_path: Path) -> None:
    drain = job_containers()[0]
    with running_bookie(cluster.metadata_uri, tmp_path) as bookie, bookie.without_socket():
        (tmp_path / "state").mkdir()

        def here(text: str) -> str:
            named = text.replace("bookie-3.bookie.bookkeeper.svc.cluster.local:3181", bookie.bookie_id)
            return named.replace(
                "bookie-3.bookie.bookkeeper.svc.cluster.local:8080", f"{LOOPBACK}:{bookie.http_port}"
            ).replace("12h", "5s")

        variables: dict[str, Any] = {name: here(value) for name, value in variables_of(drain).items()} | {
            "BKCTL_METADATA_URI": cluster.metadata_uri,
            "BKCTL_STATE_DIR": str(tmp_path / "state"),
            "BKCTL_ADMIN_TOKEN_FILE": str(tmp_path / "token"),
        }
        done = run_bkctl(*map(here, words_of(drain)), **variables)
    assert done.exit_code == 0, done.stderr
    assert done.json()["is_complete"] is True


@pytest.mark.cluster
def test_the_steps_of_the_job_succeed_where_nothing_is_left_to_do(metadata_uri: str, tmp_path: Path) -> None:
    made = run_bkctl("cluster", "init", "--if-not-exists", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    (tmp_path / "token").write_text("token")
    for container in (each for each in job_containers() if "args" in each):
        variables = variables_of(container) | {
            "BKCTL_METADATA_URI": metadata_uri,
            "BKCTL_STATE_DIR": str(tmp_path / "state"),
            "BKCTL_ADMIN_TOKEN_FILE": str(tmp_path / "token"),
        }
        words = words_of(container)
        done = run_bkctl(*words, **variables)
        assert done.exit_code == 0, done.stderr
        assert done.json()["is_complete"] is True
        assert "nothing is left to do" in done.stderr
        mistyped = run_bkctl(*(each for each in words if each != "--if-exists"), **variables)
        assert mistyped.exit_code == 4, "without the option an unknown bookie is an error"
