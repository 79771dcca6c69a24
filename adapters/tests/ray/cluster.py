"""A small Ray cluster with a driver: a head and two raylets with fake GPUs, on this machine's loopback interface.

Reads one command per line from standard input, and answers each with one line of JSON. Ends with its input.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import socket
import sys
import time
import traceback

import ray
import ray._private.services as services
from ray.cluster_utils import Cluster
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.util.placement_group import placement_group, remove_placement_group

STORE = 80 * 2**20
TRIES = 6
# All clusters of this checkout start one raylet at a time: those of Ray's own tests lock this file, too.
TURN = pathlib.Path(__file__).parents[3] / "integration/ray/tests/local_cluster.py"
# Seconds for a raylet's start. Ray gives it 30, which is too short on a busy machine.
PATIENCE = 600


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class PatientCluster(Cluster):
    """A cluster whose raylets have longer to start."""

    def _wait_for_node(self, node, timeout=PATIENCE):
        super()._wait_for_node(node, timeout)


def ended_raylets():
    """The raylets that have ended. One does so by itself if an agent of its node takes 15 seconds to start."""
    ended = set()
    for child in pathlib.Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError):
            _, name, state = re.split(r"[()] ?", pathlib.Path(f"/proc/{child}/stat").read_text(), maxsplit=2)
            if name == "raylet" and state.startswith("Z"):
                ended.add(child)
    return ended


def patient(find):
    """A search for a node that goes on while the raylet or the control store isn't up yet."""
    before = ended_raylets()

    def found(*arguments):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return find(*arguments)
            except RuntimeError:
                if ended_raylets() - before:
                    raise ChildProcessError("a raylet has ended at its start") from None
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    return found


def start():
    """Starts a cluster with two nodes. Returns it with its nodes and the dashboard's port."""
    get_node = services.get_node
    # Ray's time for the start of an agent can't be changed, so the cluster precedes other programs. Linux may schedule
    # by session.
    with contextlib.suppress(OSError):
        os.nice(-10)
    with contextlib.suppress(OSError):
        os.setsid()
        pathlib.Path("/proc/self/autogroup").write_text("-10")
    for again in reversed(range(TRIES)):
        services.get_node = patient(get_node)
        cluster, dashboard = PatientCluster(), free_port()
        try:
            return cluster, add_nodes(cluster, dashboard), dashboard
        except Exception:  # noqa: BLE001 - Ray raises no other class when a raylet ends at its start
            if not again:
                raise
            traceback.print_exc()
            with contextlib.suppress(Exception):
                ray.shutdown()
            with contextlib.suppress(Exception):
                cluster.shutdown()


def add_nodes(cluster, dashboard):
    """Adds a head without resources and two raylets, which have fixed names and their own addresses."""
    small = {"object_store_memory": STORE}
    head = {
        "num_cpus": 0,
        "num_gpus": 0,
        "include_dashboard": True,
        "dashboard_host": "127.0.0.1",
        "dashboard_port": dashboard,
        "gcs_server_port": free_port(),
        "node_name": "head",
    }
    cluster.add_node(**small, **head, node_ip_address="127.0.0.2")
    # One after the other, because two raylets that start at once disturb each other.
    nodes = {
        name: cluster.add_node(num_cpus=4, num_gpus=2, node_name=name, node_ip_address=address, **small)
        for name, address in (("a", "127.0.0.3"), ("b", "127.0.0.4"))
    }
    # The driver uses the head's raylet, because tests kill the others.
    ray.init(address=cluster.address, _node_ip_address="127.0.0.2")
    return nodes


def main(answers):
    with TURN.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        cluster, nodes, dashboard = start()
    groups = {}

    def put(key, value):
        _internal_kv_put(key, json.dumps(value), namespace=b"trainmaster")
        return {}

    def get(key):
        value = _internal_kv_get(key, namespace=b"trainmaster")
        return {"value": value and value.decode()}

    def group(name, bundles, server, gpu=1, placed=False):
        """Makes a placement group with one bundle per slot, on the server's node according to the key-value store.

        `placed`: waits until it has its place. Until then, a later group can be placed before it.
        """
        node = _internal_kv_get(f"server/{server}", namespace=b"trainmaster").decode()
        bundle = {"GPU": gpu, "CPU": 1}
        selector = [{"ray.io/node-id": node}] * bundles
        groups[name] = placement_group([bundle] * bundles, name=name, bundle_label_selector=selector)
        if placed and not groups[name].wait(PATIENCE):
            raise TimeoutError(f"the group {name} isn't placed")
        return {}

    def remove(name):
        remove_placement_group(groups.pop(name))
        return {}

    def litter(large, job):
        """Writes what any user of a cluster can: a value of `large` MiB, invalid documents, and groups with a job's
        name.
        """
        last = 2**64 - 1
        slot = {"role": "worker", "index": 0, "server": "a", "devices": [[2**32 - 1, 5000]]}
        order = {"name": "n", "action": "run", "incarnation": 2**32 - 1, "revision": 0, "reason": "", "slots": [slot]}
        record = {"v": 1, "name": "n", "driver": driver, "phase": "active", "message": "\x1b[2J" * 1000}
        slots = {"incarnation": 1, "revision": 0, "slots": "w0-4294967295"}
        values = {
            "job/7000000": b"x" * (large << 20),
            "job/7000001": b"x" * (2 << 20),
            "job/7000002": b"\xff\xfe",
            "job/7000003": b"[" * 100_000,
            "job/7000004": json.dumps({**record, "running": slots}).encode(),
            "job/007": json.dumps({**record, "name": "first"}).encode(),
            f"job/{last}": json.dumps({**record, "phase": "completed"}).encode(),
            "plan/7000001": json.dumps({"v": 1, "decision": last, **order}).encode(),
            "plan/x\x1b[2J": b"{",
            "server/\x1b[2J": b"0" * 56,
            "request": b"[" * 100_000,
        }
        values.update({f"job/{at}": b'{"\\u001b[2J": 1}' for at in range(8_000_000, 8_001_000)})
        for key, value in values.items():
            _internal_kv_put(key, value, namespace=b"trainmaster")
        for name in ("1/0/w0-4294967295", "1/0/w0-65535,p0-65535", f"{2**32 - 1}/0/w7"):
            placement_group([{"CPU": 0.001}], name=f"trainmaster/{job}/{name}", lifetime="detached")
        return {}

    def kill(server):
        cluster.remove_node(nodes.pop(server), allow_graceful=False)
        return {}

    commands = {"put": put, "get": get, "group": group, "remove": remove, "litter": litter, "kill": kill}
    driver = ray.get_runtime_context().get_job_id()
    hello = {"address": cluster.address, "dashboard": f"http://127.0.0.1:{dashboard}", "driver": driver}
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(commands[command](**arguments)), file=answers, flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    # Ray's threads print to standard output, too. Their output goes to standard error.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        main(answers)
