"""Job descriptions and their units."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmaster import Job, JobError, Role
from trainmaster._proto import job_pb2 as pb
from trainmaster.units import amount, span

pytestmark = pytest.mark.minimum

WHOLE = """
name = "resnet50"
model = "resnet"
tenant = "vision"
queue = "batch"
priority = 1
resize = "fixed"
mode = "sync"
batch = 256
examples = 50000
convergence = { delta = 0.02, patience = 3, max_epochs = 100 }
worker = { gpu = 1, cpu = 4, memory = "10GiB", bandwidth = "1Gbit", max = 16, requested = 4, sizes = [4, 8] }
server = { cpu = 4, memory = "10GiB", bandwidth = "5Gbit", max = 16, requested = 2 }
separate_roles = true
model_size = "100MiB"
utility = { kind = "sigmoid", value = 50, decay = 0.5, target = "6h" }
deadline = "12h"
accuracy = 0.92
urgency = 3
stop = "optimal"
stop_under_load = "accuracy"
partitions = [{ parameters = 10 }, { parameters = 20, after = [0] }]
dataset = { chunks = 60, batches_per_chunk = 58, epochs = 40, batch_time = "250ms", upload = "b", chunk_size = "64MiB" }
constraints = { labels = { zone = "a" } }
topology = { require = "rack" }
parallel = { tp = 2 }
time_limit = "2d"
restart_cost = "20s"
profile = [{ p = 1, w = 1, speed = 0.5 }]
launcher = "none"
elastic = "restart"
nproc_per_node = 2
workdir = "/net"
checkpoints = "out"
env = { A = "1" }
"""


def test_every_key_of_the_job_file_is_in_the_message() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    message = Job.from_dict(tomllib.loads(WHOLE)).message()
    given = {field.name for field, _ in message.ListFields()}
    assert {field.name for field in message.DESCRIPTOR.fields} - given == {"mode"}, "sync is 0"
    assert dict(message.worker.demand) == {"gpu": 1000, "cpu": 4000, "memory": 10240, "bandwidth": 1000}
    assert (message.worker.min, message.worker.max, message.worker.requested) == (1, 16, 4)
    assert (message.server.min, message.server.max, message.server.requested) == (1, 16, 2)
    assert (message.resize, message.utility.kind) == (pb.RESIZE_FIXED, pb.UTILITY_KIND_SIGMOID)
    assert (message.deadline_ms, message.time_limit_ms, message.restart_cost_ms) == (43_200_000, 172_800_000, 20_000)
    assert (message.dataset.batch_time_ms, message.dataset.chunk_size_mib, message.model_size_mib) == (250, 64, 100)
    placed = {"zone": "a", "topology.require": "rack", "parallel.tp": "2", "worker.sizes": "4,8"}
    assert dict(message.labels) == {**placed, "launcher": "none", "elastic": "restart", "nproc_per_node": "2"}
    assert (message.stop, message.stop_under_load) == (pb.STOP_OPTIMAL, pb.STOP_ACCURACY)
    assert [(part.parameters, list(part.after)) for part in message.partitions] == [(10, []), (20, [0])]
    free = Job.from_dict({"name": "a", "mode": "allreduce", "worker": {"gpu": 1}, "batch": {"min": 8, "max": 64}})
    assert (free.message().batch, dict(free.message().labels)) == (8, {"batch.min": "8", "batch.max": "64"})
    chain = Job(name="a", mode="allreduce", resize="fixed", worker=Role(cpu=1, requested=3), partitions=3).message()
    assert [list(part.after) for part in chain.partitions] == [[], [0], [1]]


def test_every_field_of_the_message_has_a_key() -> None:
    """Fails if a field is added to job.proto alone."""
    ours = set(Job.__dataclass_fields__) - {"workdir", "checkpoints", "env"}  # for the workers, not for the daemon
    theirs = {field.name.removesuffix("_ms").removesuffix("_mib") for field in pb.Job.DESCRIPTOR.fields}
    assert ours == theirs


@pytest.mark.parametrize(
    ("resource", "text", "value"),
    [
        ("gpu", 2, 2000),
        ("gpu", 0.5, 500),
        ("cpu", "250m", 250),
        ("memory", "1.5GiB", 1536),
        ("disk", "2TiB", 2 << 20),
        ("bandwidth", "2.5Gbit", 2500),
        ("license", "3", 3000),
    ],
)
def test_quantities(resource: str, text: object, value: int) -> None:
    assert amount("key", resource, text) == value


@pytest.mark.parametrize(("text", "value"), [("250ms", 250), ("20s", 20_000), ("5m", 300_000), ("1.5h", 5_400_000)])
def test_durations(text: str, value: int) -> None:
    assert span("key", text) == value


@pytest.mark.parametrize(
    ("resource", "text", "problem"),
    [
        ("memory", "-1GiB", "negative"),
        ("memory", "10GB", "unknown unit"),
        ("memory", 10, "unit is missing"),
        ("gpu", "0.0001", "finer"),
        ("gpu", "x", "not a number"),
        ("gpu", True, "neither"),
        ("gpu", float("nan"), "not a number"),
        ("gpu", 1e-07, "finer"),
        ("bandwidth", "99999999999999Gbit", "too large"),
    ],
)
def test_bad_quantities_are_refused_with_the_allowed_units(resource: str, text: object, problem: str) -> None:
    with pytest.raises(JobError, match=problem) as caught:
        amount("worker.x", resource, text)
    assert "worker.x" in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "write a number" in str(caught.value)


MISTAKES = [
    ({"worker": {"gpu": 1.5}}, "worker.gpu"),
    ({"worker": {"gpu": -1}}, "negative"),
    ({"worker": {"memory": 10}}, "10GiB"),
    ({"worker": {"memroy": "1GiB"}}, "worker.memroy: unknown key"),
    ({"worker": {"gpu": 1, "min": 3, "max": 2}}, "min = 3"),
    ({"worker": {"gpu": 1, "min": 0}}, "min = 0"),
    ({"worker": {"gpu": 1, "max": 4, "requested": 5}}, "worker.requested: 5"),
    ({"worker": {"gpu": 0}}, "worker.cpu"),
    ({"worker": {"gpu": 1, "gpu:a100": 1}}, "one kind"),
    ({"worker": {"gpu": 1, "max": 1.5}}, "worker.max: 1.5"),
    ({"worker": 3}, "worker: 3"),
    ({"server": {"cpu": 1}}, "allreduce"),
    ({"mode": "sync"}, "server: is missing"),
    ({"mode": "ring"}, "mode: 'ring'"),
    ({"resize": "maybe"}, "resize: 'maybe'"),
    ({"batches": 2}, "batches: unknown key"),
    ({"batch": 0}, "batch: 0"),
    ({"separate_roles": True}, "separate_roles"),
    ({"deadline": "soon"}, "deadline"),
    ({"convergence": {"delta": 2.0}}, "convergence.delta"),
    ({"convergence": {"epochs": 2}}, "convergence.epochs: unknown key"),
    ({"epochs": 9, "convergence": {"delta": 0.1}}, "epochs: 9 is a fixed number"),
    ({"epochs": 0}, "epochs: 0 must be a whole number of at least 1"),
    ({"profile": [{"p": 1, "w": 1}]}, r"profile\[0\].speed: is missing"),
    ({"utility": {"kind": "steep", "value": 1}}, "utility.kind: 'steep'"),
    ({"dataset": {"chunks": 1}}, "dataset.batches_per_chunk: is missing"),
    ({"constraints": {"zone": "a"}}, "constraints.zone: unknown key"),
    ({"topology": "rack"}, "topology: 'rack' must be a table"),
    ({"parallel": 4}, "parallel: 4 must be a table with tp, pp or ep"),
    ({"parallel": {"dp": 2}}, "parallel.dp: unknown key; allowed are tp, pp and ep"),
    ({"parallel": {"tp": 0}}, "parallel.tp: 0 must be a whole number of at least 1"),
    ({"batch": {"max": 8}}, "batch.size: is missing"),
    ({"batch": {"size": 8, "most": 9}}, "batch.most: unknown key; allowed are size, min, max and local"),
    ({"batch": {"size": 0, "max": 8}}, "batch.size: 0 must be a whole number of at least 1"),
    ({"batch": {"size": 8, "local": 0.5}}, "batch.local: 0.5 must be a whole number of at least 1"),
    ({"worker": {"gpu": 1, "sizes": []}}, r"worker.sizes: \[\] must be a list"),
    ({"worker": {"gpu": 1, "sizes": [1, True]}}, r"worker.sizes: \[1, True\] must be a list"),
    ({"topology": {"within": "rack"}}, "topology.within: unknown key"),
    ({"topology": {"require": "row"}}, "topology.require: 'row' must be one of zone, block, rack, server"),
    (
        {"topology": {"require": "rack"}, "constraints": {"labels": {"topology.require": "rack"}}},
        "topology.require: stands in constraints.labels, too",
    ),
    ({"accuracy": 2}, "accuracy: 2"),
    ({"stop": "soon"}, "stop: 'soon'"),
    ({"partitions": 2}, "resize"),
    ({"partitions": "two", "resize": "fixed"}, "partitions: 'two'"),
    ({"partitions": [{"size": 2}], "resize": "fixed"}, r"partitions\[0\].size: unknown key"),
    ({"nproc_per_node": 0}, "nproc_per_node: 0 must be a whole number"),
    ({"workdir": "net"}, "workdir: 'net' must begin with /"),
    ({"checkpoints": "out"}, "checkpoints: 'out' must begin with /"),
    ({"env": {"A-B": "1"}}, "env: 'A-B': a variable's name"),
    ({"env": {"A": 1}}, "env.A: 1 must be a text"),
    ({"env": "A=1"}, "env: 'A=1' must be a table"),
    ({"name": "../x"}, "name"),
    ({"name": "-x"}, "name"),
    ({"name": "17"}, "number"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Job.from_dict({"name": "a", "mode": "allreduce", "worker": {"gpu": 1}} | change)


def test_a_job_has_the_keys_of_the_job_file() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    source = (Path(__file__).parents[3] / "core/src/job/file.rs").read_text()
    struct = source[source.index("struct File {") :].split("\n}")[0]
    keys = set(re.findall(r"^    (\w+): ", struct, re.MULTILINE))
    assert {"name", "env", "profile"} < keys
    # The one that isn't in WHOLE beside `convergence`.
    assert set(tomllib.loads(WHOLE)) == keys - {"epochs"}
    job = Job.from_dict({"name": "a", "mode": "allreduce", "worker": {"gpu": 1}, "epochs": 3})
    assert (job.convergence.delta, job.convergence.max_epochs) == (0.0, 3)


def test_requested_is_the_default_maximum() -> None:
    assert Role(cpu=1, requested=3).counts() == (1, 3, 3)
    assert Role(cpu=1).counts() == (1, 1, 1)


def test_a_job_says_how_it_starts_and_changes() -> None:
    rest = {"name": "a", "mode": "allreduce", "worker": {"gpu": 1, "max": 4}}
    job = Job.from_dict({**rest, "launcher": "torchrun", "elastic": "restart"})
    assert dict(job.message().labels) == {"launcher": "torchrun", "elastic": "restart"}
    fixed = Job.from_dict({**rest, "elastic": "fixed"})
    assert (fixed.resize, dict(fixed.labels)) == ("fixed", {})
    for wrong in ({"launcher": "mpirun"}, {"elastic": "yes"}):
        with pytest.raises(JobError, match=f"{min(wrong)}: '{min(wrong.values())}' must be one of"):
            Job.from_dict({**rest, **wrong})
