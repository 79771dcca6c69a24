"""A real Ray whose autoscaler starts and ends raylets on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)
from ray.autoscaler.v2.sdk import get_cluster_resource_state, request_cluster_resources
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from .local_cluster import Cluster, ray_start

_HEAD = "head"
_NAMESPACE = b"trainmaster"


@dataclass(frozen=True)
class NodeType:
    """A type of nodes that the autoscaler can add."""

    cpus: int
    gpus: int
    labels: Mapping[str, str]
    most: int

    def resources(self) -> dict[str, float]:
        return {name: count for name, count in (("CPU", self.cpus), ("GPU", self.gpus)) if count}

    def configuration(self) -> dict[str, Any]:
        return {"resources": self.resources(), "labels": dict(self.labels), "node_config": {}, "max_workers": self.most}

    def toml(self, name: str) -> str:
        labels = ", ".join(f'{key} = "{value}"' for key, value in self.labels.items())
        return (
            f'[[node_types]]\nname = "{name}"\ncount = {self.most}\ncpu = {self.cpus}\ngpu = {self.gpus}\n'
            f'labels = {{ {labels} }}\ndelay = "5s"\n'
        )


@dataclass
class Instance:
    """An instance of the fake cloud: a raylet that starts or runs, or the head, which the provider can't end."""

    tags: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def lives(self) -> bool:
        return not self.process or self.process.poll() is None


class LocalProvider(NodeProvider):  # type: ignore[misc]
    """A node provider whose instances are raylets. It runs in the autoscaler, which calls it from several threads."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._starting = threading.Lock()
        tags = {
            TAG_RAY_NODE_KIND: NODE_KIND_HEAD,
            TAG_RAY_USER_NODE_TYPE: _HEAD,
            TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
        }
        self._instances = {_HEAD: Instance(tags)}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return [
            name
            for name, instance in list(self._instances.items())
            if instance.lives and tag_filters.items() <= instance.tags.items()
        ]

    def is_running(self, node_id: str) -> bool:
        return node_id in self._instances and self._instances[node_id].lives

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._instances[node_id].tags)

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self._instances[node_id].tags |= tags

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        for _ in range(count):
            with self._starting:
                name = f"{tags[TAG_RAY_USER_NODE_TYPE]}-{uuid.uuid4().hex[:8]}"
                # Listed before Ray sees the node. Otherwise the autoscaler would count it as an additional one.
                self._instances[name] = Instance(dict(tags))
                try:
                    self._instances[name].process = self._start(name, tags, resources, labels)
                except BaseException:
                    del self._instances[name]
                    raise

    def _start(
        self, name: str, tags: dict[str, str], resources: dict[str, float], labels: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        identity = {"RAY_CLOUD_INSTANCE_ID": name, "RAY_NODE_TYPE_NAME": tags[TAG_RAY_USER_NODE_TYPE]}
        return ray_start(
            Path(self.provider_config["folder"]) / f"{name}.log",
            {**os.environ, **identity},
            f"--address={self.provider_config['gcs_address']}",
            f"--node-name={name}",
            f"--num-cpus={resources.get('CPU', 0):g}",
            f"--num-gpus={resources.get('GPU', 0):g}",
            "--labels=" + ",".join(f"{key}={value}" for key, value in labels.items()),
        )

    def terminate_node(self, node_id: str) -> None:
        with self._starting:
            process = self._instances[node_id].process
        assert process, "the autoscaler does not end the head"
        process.terminate()

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config


class AutoscalingCluster(Cluster):
    """A cluster with only a head at the start. The autoscaler adds nodes: with `strict`, Trainmaster's monitor does."""

    def __init__(self, node_types: Mapping[str, NodeType], *, strict: bool = False) -> None:
        super().__init__(0)
        self.node_types = node_types
        self._strict = strict
        self._monitor: subprocess.Popen[bytes] | None = None
        self.monitor_log = self.folder / "monitor.log"
        self._configuration = self.folder / "autoscaling.json"
        self._configuration.write_text(json.dumps(self._content()))
        self._head_arguments = ["--no-monitor"] if strict else [f"--autoscaling-config={self._configuration}"]
        self.env |= {
            "RAY_enable_autoscaler_v2": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_CLOUD_INSTANCE_ID": _HEAD,
            "RAY_NODE_TYPE_NAME": _HEAD,
            # The autoscaler imports the provider from here.
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), self.env["PYTHONPATH"]]),
        }

    def _content(self) -> dict[str, Any]:
        types = {name: node_type.configuration() for name, node_type in self.node_types.items()}
        return {
            "cluster_name": "test",
            "max_workers": sum(node_type.most for node_type in self.node_types.values()),
            "idle_timeout_minutes": 0.05,
            "provider": {
                "type": "external",
                "module": f"{__name__}.{LocalProvider.__name__}",
                "gcs_address": self.address,
                "folder": str(self.folder),
                "disable_node_updaters": True,
            },
            "head_node_type": _HEAD,
            "available_node_types": {_HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}, **types},
            # Unused here, but required.
            "setup_commands": [],
            "head_setup_commands": [],
            "worker_setup_commands": [],
            "cluster_synced_files": [],
        }

    def __enter__(self) -> AutoscalingCluster:
        super().__enter__()
        self._client = GcsClient(address=self.address)
        if self._strict:
            self._monitor = self._start_monitor()
        return self

    def _start_monitor(self) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "trainmaster.ray.monitor"),
            f"--address={self.address}",
            f"--autoscaling-config={self._configuration}",
        ]
        with self.monitor_log.open("wb") as log:
            return subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)

    def settings(self) -> str:
        tables = "\n".join(node_type.toml(name) for name, node_type in self.node_types.items())
        return f"{super().settings()}\n{tables}"

    def added(self) -> Counter[str]:
        """The number of existing nodes of each type."""
        return Counter(node.ray_node_type_name for node in self._state().node_states if self._is_added(node))

    def added_ids(self) -> set[str]:
        return {node.node_id.hex() for node in self._state().node_states if self._is_added(node)}

    @staticmethod
    def _is_added(node: Any) -> bool:
        return bool(node.status != NodeStatus.DEAD and node.ray_node_type_name != _HEAD)

    def slot(self) -> Counter[tuple[frozenset[tuple[str, float]], frozenset[tuple[str, str]]]]:
        """The current request to the autoscaler: the number of each bundle with its labels."""
        found: Counter[tuple[frozenset[tuple[str, float]], frozenset[tuple[str, str]]]] = Counter()
        for constraint in self._state().cluster_resource_constraints:
            for entry in constraint.resource_requests:
                labels = {
                    (condition.label_key, value)
                    for selector in entry.request.label_selectors
                    for condition in selector.label_constraints
                    for value in condition.label_values
                }
                found[frozenset(entry.request.resources_bundle.items()), frozenset(labels)] += entry.count
        return found

    def ask(self, *bundles: dict[str, float]) -> None:
        """Replaces the request to the autoscaler."""
        request_cluster_resources(self.address, [{"resources": bundle} for bundle in bundles])

    def infeasible(self) -> bool:
        """Whether the autoscaler reports that it can't meet the request."""
        reply = GetClusterStatusReply()
        reply.ParseFromString(self._client.get_cluster_status())
        return bool(reply.autoscaling_state.infeasible_cluster_resource_constraints)

    def _state(self) -> Any:
        return get_cluster_resource_state(self._client)

    def put_key(self, name: str, value: bytes) -> None:
        self._client.internal_kv_put(name.encode(), value, True, _NAMESPACE, timeout=60)

    def script(self, text: str) -> subprocess.Popen[bytes]:
        """Starts another user's Python program, as its own driver."""
        with (self.folder / f"script-{uuid.uuid4().hex[:4]}.log").open("wb") as out:
            command = [sys.executable, "-c", text]
            return subprocess.Popen(command, env=self.env, stdout=out, stderr=out, start_new_session=True)

    def close(self) -> None:
        super().close()
        if self._monitor:
            self._monitor.wait()
