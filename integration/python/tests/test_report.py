"""`trainmaster.report` in a plain loop, as a job of a real daemon on this machine. Without Ray."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainmaster
from trainmaster import Job, Refused, Role, TrainmasterError, Unreachable
from trainmaster.channel import Jobs
from trainmaster.reporter import Reporter, Slot
from trainmaster.tally import Outbox, Report
from trainmaster.testing import Daemon, free_port, wait_for

pytestmark = pytest.mark.minimum

SOURCES = str(Path(__file__).resolve().parents[1] / "src")
LOOP = Path(__file__).with_name("plain_loop.py")


@pytest.fixture
def daemon(binary: str, tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "cluster.toml").write_text('[[server]]\nname = "a"\ncpu = 4\n')
    daemon = Daemon(tmp_path, f"local={tmp_path / 'cluster.toml'}", "--end-jobs")
    yield daemon
    daemon.end()


def loop(name: str) -> Job:
    role = Role(cpu=1, max=2, requested=2, command=f"{sys.executable} {LOOP}")
    return Job(name, role, mode="allreduce", resize="fixed", batch=32, examples=320)


def test_a_plain_loop_reports_and_ends_its_job(daemon: Daemon) -> None:
    jobs = daemon.jobs()
    number, token = jobs.submit(loop("plain"))
    assert number > 0
    assert token
    with pytest.raises(Refused, match="plain"):
        jobs.submit(loop("plain"))
    status = wait_for("a loss", lambda: next((s for s in jobs.list(all=True) if s.HasField("loss")), None))
    assert 0 < status.loss < 1
    ended = wait_for("its end", lambda: next((s for s in jobs.list(all=True) if s.state == "completed"), None))
    assert (ended.step, ended.epoch) == (60, 6)
    assert "converged" in ended.reason


def test_reports_survive_a_restart_of_the_daemon(daemon: Daemon) -> None:
    jobs = daemon.jobs()
    number, _ = jobs.submit(loop("patient"))
    wait_for("a loss", lambda: next((s for s in jobs.list(all=True) if s.HasField("loss")), None))
    daemon.kill()
    with pytest.raises(Unreachable, match=daemon.address):
        jobs.list()
    daemon.start()
    ended = wait_for("its end", lambda: next((s for s in jobs.list(all=True) if s.state == "completed"), None))
    assert (ended.job, ended.step) == (number, 60)


def test_a_loop_follows_the_batch_that_the_scheduler_chooses(daemon: Daemon, tmp_path: Path) -> None:
    told = tmp_path / "batches"
    program = Path(__file__).with_name("adaptive_loop.py")
    job = Job.from_dict(
        {
            "name": "adaptive",
            "mode": "allreduce",
            "batch": {"size": 16, "max": 256, "local": 64},
            "epochs": 60,
            "examples": 160,
            "worker": {"cpu": 1, "command": f"{sys.executable} {program} {told}"},
        }
    )
    jobs = daemon.jobs()
    jobs.submit(job)
    ended = wait_for("its end", lambda: next((s for s in jobs.list(all=True) if s.state == "completed"), None))
    assert ended.step >= 600
    batches = [tuple(map(int, line.split())) for line in told.read_text().splitlines()]
    assert batches[0] == (16, 16, 1), "it starts with the submitted batch"
    # The gradients are noisy, so a larger batch pays. On a busy machine a smaller one was chosen again later.
    assert max(size for size, _, _ in batches) >= 32, batches
    for size, local, passes in batches:
        assert size == local * passes, batches
        assert 16 <= size <= 256, batches
        assert local <= 64, batches


def test_a_reporter_without_a_daemon_neither_blocks_nor_grows() -> None:
    reporter = Reporter(f"127.0.0.1:{free_port()}", Slot("1"), interval=0.001)
    for step in range(50_000):
        reporter.shape(step % 2 + 1, 0)  # makes a progress message of every report
        reporter.report(Report(step, 1.0))
    assert len(reporter._outbox) <= Outbox.LIMIT
    assert reporter._outbox.dropped > 0
    assert not reporter.flush(0.0)
    reporter.close(0.0)


def test_a_program_outside_a_job_reports_nothing() -> None:
    program = "import trainmaster; trainmaster.report(step=1); trainmaster.report(step='x'); print('done')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": SOURCES}
    )
    assert done.stdout == "done\n", "an invalid report must not stop the program"
    assert done.stderr.count("report dropped") == 1, done.stderr
    assert not trainmaster.should_stop()


@pytest.mark.parametrize("address", ["localhost", "localhost:x", "ftp://localhost:1", "localhost:1/jobs"])
def test_bad_addresses_are_named(address: str) -> None:
    with pytest.raises(TrainmasterError, match="address"):
        Jobs(address)
