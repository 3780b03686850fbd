"""Where the audit runs: options that have no effect are refused, and settings follow from the place and the size."""

from __future__ import annotations

import pytest
from pyspark import SparkConf

from bkctl.runtime.errors import ConfigurationError
from bkctl.spark_reports.deployment import (
    LARGE_LEDGERS,
    SparkDeployment,
    choose_deployment,
    is_growing,
    start_settings,
)

OF_EVERY_CLUSTER = {"spark.ui.showConsoleProgress": "false", "spark.speculation": "false"}
SUBMITTED = {"PYSPARK_GATEWAY_PORT": "1234"}


@pytest.mark.parametrize(
    ("master", "cores", "environment", "text"),
    [
        ("spark://a:1", None, SUBMITTED, "spark-submit chooses the master"),
        (None, 2, SUBMITTED, "spark-submit chooses the master"),
        ("local[3]", 2, {}, r"use --master 'local\[2\]'"),
        ("yarn", 2, {}, "not yarn"),
        ("sc://a:15002", None, {}, "is a Spark Connect server"),
    ],
)
def test_options_without_effect_are_refused(
    master: str | None, cores: int | None, environment: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        choose_deployment(master, cores, environment)


def test_places() -> None:
    here = choose_deployment(None, 3, {})
    assert (here.is_local, here.master_url, here.description) == (True, "local[3]", "on this machine")
    assert choose_deployment("local[*]", None, {}).is_local
    cluster = choose_deployment("spark://a:1,b:2", 4, {})
    assert (cluster.is_local, cluster.standalone_addresses) == (False, ["a:1", "b:2"])
    assert not choose_deployment("k8s://https://a:6443", None, {}).standalone_addresses
    assert not choose_deployment(None, None, SUBMITTED).is_local


def test_a_cluster_keeps_its_own_settings() -> None:
    assert start_settings(SparkDeployment("yarn"), "/tmp/x", "/tmp/x/log") == OF_EVERY_CLUSTER
    limited = start_settings(SparkDeployment("spark://a:1", cores=4), "/tmp/x", "/tmp/x/log")
    assert limited["spark.cores.max"] == "4"


def test_a_cluster_that_grows_is_recognized() -> None:
    assert not is_growing(SparkConf(loadDefaults=False))
    assert is_growing(SparkConf(loadDefaults=False).set("spark.dynamicAllocation.enabled", "true"))


@pytest.mark.parametrize(("ledgers", "is_large"), [(None, False), (LARGE_LEDGERS - 1, False), (LARGE_LEDGERS, True)])
def test_a_large_job_gets_compilers_and_a_parallel_collector(ledgers: int | None, is_large: bool) -> None:
    deployment = SparkDeployment(ledgers=ledgers)
    java = start_settings(deployment, "/tmp/x", "/tmp/x/log")["spark.driver.extraJavaOptions"]
    assert ("UseParallelGC" in java, "TieredStopAtLevel" in java) == (is_large, not is_large)
