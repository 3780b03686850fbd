"""A Pulsar broker with the default settings of its release, on bookies that run already; and its clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.java import JavaError, JavaProcess, JavaProgram
from tests.processes import LOOPBACK, free_port
from tests.until import wait_until

RELEASE = "pulsar"
"""Jars of Pulsar, its broker's BookKeeper client and its bookie: ``scripts/build_pulsar.sh``."""

JVM_FLAGS = (
    *("-Xmx768m", "-XX:MaxDirectMemorySize=512m", "-Dio.netty.tryReflectionSetAccessible=true"),
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/sun.net=ALL-UNNAMED"),
    *("--add-opens", "java.management/sun.management=ALL-UNNAMED"),
    "-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
)
_CLUSTER = "test"
_SETTINGS = {
    "clusterName": _CLUSTER,
    "bindAddress": LOOPBACK,
    "advertisedAddress": LOOPBACK,
    "metadataStoreSessionTimeoutMillis": "10000",
    # Many ledgers, of three bookies each.
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerMaxEntriesPerLedger": "1000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorMaxEntriesPerLedger": "200",
    # Reads go to the bookies, not to the broker's memory.
    "managedLedgerCacheSizeMB": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "transactionCoordinatorEnabled": "true",
    "systemTopicEnabled": "true",
    "loadBalancerEnabled": "false",
    "functionsWorkerEnabled": "false",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "numHttpServerThreads": "8",
}


class PulsarCluster:
    """One broker and one program with its clients. Use as a context manager: it ends both.

    ``metadata_uri`` is that of the bookies; Pulsar's own metadata lies next to it, as in most installations.
    """

    def __init__(self, directory: str, metadata_uri: str) -> None:
        self.directory = directory
        self.web_port = free_port()
        self._port = free_port()
        self._servers = parse_metadata_uri(metadata_uri).servers
        self._metadata = f"zk:{self._servers}"
        self._broker: JavaProcess | None = None
        self._conf_path = os.path.join(directory, "broker.conf")
        os.makedirs(directory)

    def __enter__(self) -> Self:
        self._write_conf(
            _SETTINGS
            | {"brokerServicePort": str(self._port), "webServicePort": str(self.web_port)}
            | {"metadataStoreUrl": self._metadata, "configurationMetadataStoreUrl": self._metadata}
        )
        self._initialize_metadata()
        self.client = JavaProgram(
            os.path.join(self.directory, "client.log"),
            "bkctl.interop.PulsarPeer",
            *(self._service_url, self._web_url, _CLUSTER),
            jvm_flags=JVM_FLAGS,
            release=RELEASE,
        )
        try:
            self.start_broker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop()
        self.kill_broker()

    @property
    def _service_url(self) -> str:
        return f"pulsar://{LOOPBACK}:{self._port}"

    @property
    def _web_url(self) -> str:
        return f"http://{LOOPBACK}:{self.web_port}"

    def _write_conf(self, settings: Mapping[str, str]) -> None:
        with open(self._conf_path, "w", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in settings.items())

    def _initialize_metadata(self) -> None:
        setup = JavaProcess(
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", _CLUSTER, "--metadata-store", self._metadata),
            *("--configuration-metadata-store", self._metadata),
            *("--web-service-url", self._web_url, "--broker-service-url", self._service_url),
            *("--initial-num-transaction-coordinators", "1"),
            log_path=os.path.join(self.directory, "setup.log"),
            jvm_flags=JVM_FLAGS,
            release=RELEASE,
        )
        wait_until(lambda: not setup.is_running, "the cluster's metadata is initialized")

    def start_broker(self) -> None:
        """Start the broker and wait until it says that it is healthy, which takes an add to a bookie and a read."""
        self._broker = JavaProcess(
            "org.apache.pulsar.PulsarBrokerStarter",
            *("--broker-conf", self._conf_path),
            log_path=os.path.join(self.directory, "broker.log"),
            jvm_flags=JVM_FLAGS,
            release=RELEASE,
        )
        wait_until(self._is_healthy, f"the broker is healthy: see the logs in {self.directory}")

    def _is_healthy(self) -> bool:
        assert self._broker is not None
        assert self._broker.is_running, f"the broker ended: see the logs in {self.directory}"
        try:
            self.call("check_health")
        except JavaError:
            return False
        return True

    def kill_broker(self) -> None:
        """kill -9."""
        if self._broker is not None:
            self._broker.kill()

    def forget_topic(self, name: str) -> None:
        """Delete the node that names the ledgers of a topic, as no broker does."""
        znodes = KazooClient(self._servers)
        znodes.start()
        try:
            znodes.delete(f"/managed-ledgers/tenant/space/persistent/{name}", recursive=True)
        finally:
            znodes.stop()
            znodes.close()

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Have the clients run a command; JavaError if it threw."""
        return self.client.call_and_wait(command, **arguments)
