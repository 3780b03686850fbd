"""What a Python process of Spark imports of bkctl."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.test_import_names import OLD_NAMES


def test_an_executor_loads_no_old_name(spark: SparkSession) -> None:
    def names(_: int) -> list[str]:
        import sys

        import bkctl.spark_reports.write_set_source  # noqa: F401

        return [name for name in sys.modules if name.partition(".")[0] in OLD_NAMES or name.startswith("bkctl.")]

    loaded = spark.sparkContext.parallelize([0], 1).flatMap(names).collect()
    assert "bkctl.runtime.replication.judge.verdict" in loaded
    assert [name for name in loaded if not name.startswith("bkctl.")] == []
