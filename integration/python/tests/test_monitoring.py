"""The alerts, the dashboard and the metrics, with a real Prometheus that reads a real daemon."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from trainmaster.testing import Daemon, daemon_binary, free_port, wait_for

ROOT = Path(__file__).parents[3]
FILES = ROOT / "integration/prometheus"
TOOLS = ROOT / "target/prometheus/usr/bin"
ALERTS = re.findall(r"- alert: (\w+)", (FILES / "alerts.yml").read_text())


@pytest.fixture(scope="module")
def tools() -> Path:
    if not (TOOLS / "promtool").exists():
        pytest.skip("Prometheus is missing: scripts/install prometheus")
    return TOOLS


def promtool(tools: Path, *arguments: str, text: str = "") -> None:
    command = [str(tools / "promtool"), *arguments]
    done = subprocess.run(command, cwd=FILES, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_where_they_should(tools: Path) -> None:
    promtool(tools, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml")
    promtool(tools, "test", "rules", "alerts-test.yml")
    tested = set(re.findall(r'alertname="(\w+)"', (FILES / "alerts-test.yml").read_text()))
    assert tested == set(ALERTS)


def job(name: str, tenant: str, queue: str, gpus: int, step_ms: int) -> str:
    command = f"trainmaster-trainer --device-step-ms={step_ms} --report-ms=200"
    return (
        f'name = "{name}"\ntenant = "{tenant}"\nqueue = "{queue}"\nepochs = {20 if step_ms > 10 else 2}\n'
        f'worker = {{ gpu = {gpus}, cpu = 1, min = 1, max = 2, command = "{command}" }}\n'
        'server = { cpu = 1, min = 1, max = 1, command = "trainmaster-trainer" }\n'
    )


# Its end is predicted while it trains.
CONVERGES = """
name = "converges"
tenant = "research"
queue = "batch"
batch = 32
examples = 1024
convergence = { delta = 0.002, patience = 8, max_epochs = 500 }
worker = { gpu = 1, cpu = 1, command = "trainmaster-trainer --device-step-ms=12 --report-ms=200" }
server = { cpu = 1, command = "trainmaster-trainer" }
"""


class Site:
    """A daemon with two types of GPU and jobs of two tenants, and a Prometheus with the example's configuration."""

    def __init__(self, folder: Path, tools: Path) -> None:
        servers = [("a", "a100"), ("b", "t4")]
        text = "".join(f'[[server]]\nname = "{name}"\ncpu = 8\ngpu = ["{gpu}", "{gpu}"]\n' for name, gpu in servers)
        (folder / "cluster.toml").write_text(text)
        self.folder = folder
        self.daemon = Daemon(folder, f"local={folder / 'cluster.toml'}", "--end-jobs")
        token = folder / "trainmaster.token"
        self.daemon.make_token("prometheus", token, "--role=metrics")
        self.token = token.read_text().strip()
        config = (FILES / "prometheus.yml").read_text()
        for example, here in [
            ("alerts.yml", FILES / "alerts.yml"),
            ("trainmaster.token}", f"{token}}}"),
            ("127.0.0.1:7070", self.daemon.address),
        ]:
            assert example in config
            config = config.replace(example, str(here))
        every = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        (folder / "prometheus.yml").write_text(every + config)
        self.address = f"127.0.0.1:{free_port()}"
        command = [str(tools / "prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={self.address}"]
        self.log = (folder / "prometheus.log").open("wb")
        self.prometheus = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def submit(self, text: str) -> None:
        file = self.folder / "job.toml"
        file.write_text(text)
        command = [daemon_binary(), "submit", str(file), f"--server=http://{self.daemon.address}"]
        done = subprocess.run(command, env={"XDG_STATE_HOME": str(self.folder)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def metrics(self) -> str:
        request = Request(f"http://{self.daemon.address}/metrics", headers={"Authorization": f"Bearer {self.token}"})
        with urlopen(request) as answer:
            return str(answer.read().decode())

    def ask(self, path: str, **query: str) -> Any:
        with urlopen(f"http://{self.address}/api/v1/{path}?{urlencode(query)}") as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        """Whether Prometheus has read the daemon's metrics."""
        try:
            return bool(self.ask("query", query="trainmaster_build_info")["result"])
        except URLError:
            return False

    def end(self) -> None:
        self.prometheus.terminate()
        self.prometheus.wait()
        self.log.close()
        self.daemon.end()


@pytest.fixture(scope="module")
def site(tools: Path, binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), tools)
    try:
        wait_for("the first reading", site.is_ready)
        site.submit(job("short", "research", "batch", 1, 1))
        site.submit(CONVERGES)
        wait_for("the end of both", lambda: 'jobs_ended_total{state="completed"} 2' in site.metrics())
        site.submit(job("long", "research", "batch", 2, 500))
        site.submit(job("longer", "vision", "urgent", 2, 500))
        site.submit(job("waits", "vision", "urgent", 2, 500))
        yield site
    finally:
        site.end()


def queries() -> list[tuple[str, str]]:
    """Each query of the dashboard, with the form of its legend."""
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    targets = [target for panel in panels for target in panel.get("targets", [])]
    here = [target["expr"].replace("$instance", ".*").replace("$__rate_interval", "30s") for target in targets]
    return list(zip(here, (target["legendFormat"] for target in targets), strict=True))


def test_every_query_of_the_dashboard_has_data(site: Site) -> None:
    assert len(queries()) > 40

    # No job restarts here.
    undefined = [query for query, _ in queries() if "restart_seconds_sum" in query]
    assert len(undefined) == 1

    def has_data(query: str) -> bool:
        values = [series["value"][1] for series in site.ask("query", query=query)["result"]]
        return bool(values) and ("NaN" not in values or query in undefined)

    missing = {query for query, _ in queries()}

    def complete() -> bool:
        missing.difference_update([query for query in missing if has_data(query)])
        return not missing

    try:
        wait_for("data", complete)
    except TimeoutError:
        pytest.fail(f"no data: {missing}\n{site.metrics()}")
    # Each line has a legend of its own.
    for query, legend in queries():
        labels = [series["metric"] for series in site.ask("query", query=query)["result"]]
        shown = [re.sub(r"{{(\w+)}}", lambda label, of=of: of[label[1]], legend) for of in labels]  # type: ignore[misc]
        assert len(set(shown)) == len(shown), (query, shown)


def test_prometheus_evaluates_every_alert(site: Site) -> None:
    def rules() -> dict[str, dict[str, str]]:
        [group] = site.ask("rules")["groups"]
        return {rule["name"]: rule for rule in group["rules"]}

    wait_for("the first evaluation", lambda: all(rule["health"] != "unknown" for rule in rules().values()))
    assert {name: rule["health"] for name, rule in rules().items()} == dict.fromkeys(ALERTS, "ok")
    # The metrics are there under the names in the alerts.
    names = set(site.ask("label/__name__/values"))
    for name, rule in rules().items():
        assert set(re.findall(r"trainmaster_\w+", rule["query"])) <= names, name
    # A scrape on a busy machine may have taken too long.
    wait_for("a scrape", lambda: site.ask("query", query='up{job="trainmaster"}')["result"][0]["value"][1] == "1")


def test_metrics_follow_the_conventions(site: Site, tools: Path) -> None:
    promtool(tools, "check", "metrics", text=site.metrics())


def test_metrics_count_gpus_tenants_and_queues(site: Site) -> None:
    def there(*lines: str) -> None:
        wait_for(f"{lines}", lambda: set(lines) <= set(site.metrics().splitlines()))

    there(
        'trainmaster_gpus{type="a100"} 2',
        'trainmaster_gpus{type="t4"} 2',
        'trainmaster_used_gpus{type="a100"} 2',
        'trainmaster_used_gpus{type="t4"} 2',
        'trainmaster_tenant_gpus{tenant="research"} 2',
        'trainmaster_tenant_gpus{tenant="vision"} 2',
        'trainmaster_tenant_running_jobs{tenant="vision"} 1',
        'trainmaster_queue_waiting_jobs{queue="urgent"} 1',
        'trainmaster_job_gpus{name="long"} 2',
        "trainmaster_jobs_submitted_total 5",
        "trainmaster_completion_seconds_count 2",
        "trainmaster_first_start_seconds_count 4",
        'trainmaster_engine_info{engine="optimus"} 1',
        'trainmaster_mode_info{mode="active"} 1',
    )
    waits = re.search(r'^trainmaster_job_wait_seconds{name="waits"} (\S+)', site.metrics(), re.MULTILINE)
    assert waits
    assert float(waits[1]) > 0
