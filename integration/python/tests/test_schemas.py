"""The JSON Schemas of files, on the files that the repository shows and on mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[3]
SAMPLES = {"local": "cluster.toml", "ray": "ray.toml", "yarn": "yarn.toml"}


def errors(name: str, text: str) -> list[str]:
    schema: Any = json.loads((ROOT / "docs/schema" / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return [error.message for error in Draft202012Validator(schema).iter_errors(tomllib.loads(text))]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_adapters_are_valid(name: str) -> None:
    assert errors(name, (ROOT / "adapters" / name / SAMPLES[name]).read_text()) == []


def test_job_files_of_the_documentation_are_valid() -> None:
    texts = [page.read_text() for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]]
    blocks = [block for text in texts for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    jobs = [
        block
        for block in blocks
        if re.search(r"^(\[worker\]|worker *=)", block, re.MULTILINE) and "\nname" in "\n" + block
    ]
    assert len(jobs) > 3
    for job in jobs:
        assert errors("job", job) == [], job


def test_the_configuration_of_the_documentation_is_valid() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    [block] = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert errors("configuration", block) == []


JOB = 'name = "a"\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job", JOB + 'worker = { cpu = 0.5, "gpu:a100" = 1, memory = " 1.5 GiB", sizes = [1, 2] }'),
        ("job", JOB + 'worker = { gpu = "500m", sizes = "multiples of 4" }\nserver = { cpu = 1 }\nbatch = { max = 8 }'),
        ("job", JOB + 'worker.gpu = 1\npartitions = [{ parameters = 1 }]\ndeadline = ".5h"\nnproc_per_node = 2'),
        ("job", JOB + 'worker.gpu = 1\nutility = { kind = "table", value = 2, points = [["6h", 1], ["12h", 0.5]] }'),
        ("local", '[[server]]\nname = "a"\ngpu = ["a100"]\nresources = { license = 2 }'),
        ("ray", 'measure = "off"\nbandwidth = "1Gbit"'),
        ("yarn", 'tls = { cert = "c", key = "k" }\nttl = "1m"'),
        ("slurm", 'mode = "shadow"\npoll = "250ms"\n[slurm]\nlease = "10m"\n[scheduler]\nengine = "drf"'),
        ("settings", 'stability = "off"\n[tenants.a]\ngpu = 4\nmemory = "1TiB"\n[parameters]\nshort_first = false'),
        (
            "configuration",
            'adapters = ["local=a.toml"]\njournal = { history_bytes = "64MiB", waiting_bytes = 1000 }\n[scheduler]\n'
            'engine = "drf"\n[scheduler.stability]\nmin_run = "1m"',
        ),
    ],
)
def test_what_is_allowed_is_valid(name: str, text: str) -> None:
    assert errors(name, text) == []


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("job", "worker.gpu = 1", "'name' is a required property"),
        ("job", JOB, "'worker' is a required property"),
        ("job", JOB + "worker.gpus = 1", "'gpus'"),
        ("job", JOB + "worker.gpu = 1\nserver.gpus = 1", "'gpus'"),
        ("job", JOB + "worker.gpu = 1\nepochs = 0", "minimum of 1"),
        ("job", JOB + "worker.gpu = 1\nbatch = 0", "0 is not valid"),
        ("job", JOB + 'worker.gpu = 1\nmode = "ring"', "'ring'"),
        ("job", JOB + 'worker.gpu = 1\ndeadline = "5"', "'5'"),
        ("job", JOB + 'worker.memory = "5GB"', "'5GB'"),
        ("local", 'name = "a"', "'server' is a required property"),
        ("local", "server = []", "[]"),
        ("local", '[[server]]\nname = "a/b"', "'a/b'"),
        ("local", '[[server]]\nname = "a"\ncount = 0', "minimum of 1"),
        ("local", '[[server]]\nname = "a"\ncpus = 1', "'cpus'"),
        ("local", 'oversubscribe = 100\n[[server]]\nname = "a"', "maximum of 8"),
        ("local", '[[server]]\nname = "a"\ngpu = 1025', "1025"),
        ("ray", '[[node_types]]\nname = "a"\ncpu = 1', "'labels' is a required property"),
        ("ray", '[[node_types]]\nname = "a"\ncpu = 1\nlabels = {}', "{}"),
        ("ray", "poll = 5", "5"),
        ("yarn", 'api = "soap"', "'soap'"),
        ("slurm", 'mode = "off"', "'off'"),
        ("slurm", "[slurm]\npriority = 0", "minimum of 1"),
        ("configuration", '[journal]\nhistory_bytes = "64MB"', "'64MB'"),
        ("settings", "fallback_after = 0", "minimum of 1"),
        ("configuration", 'listn = ":1"', "'listn'"),
    ],
)
def test_mistakes_are_found(name: str, text: str, part: str) -> None:
    found = errors(name, text)
    assert any(part in message for message in found), found
