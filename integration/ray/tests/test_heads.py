"""Tests with their own heads: Ray's token authentication, and a head that dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.testing import wait_for

from .conftest import LONG, Run
from .local_cluster import Cluster

pytestmark = pytest.mark.cluster


def test_a_job_trains_with_rays_token_authentication(binary: str, tmp_path: Path) -> None:
    token_file, other_file = tmp_path / "token", tmp_path / "other"
    for file, token in [(token_file, "0123456789abcdef" * 2), (other_file, "fedcba9876543210" * 2)]:
        file.touch(0o600)
        file.write_text(token)
    with Cluster(1, token_file=token_file) as cluster:
        assert f"{token_file} is accepted" in cluster.doctor()
        assert "missing or incorrect" in cluster.doctor(cluster.settings().replace(str(token_file), str(other_file)))
        daemon = cluster.serve()
        run = Run(cluster, daemon, tmp_path, "known", epochs=5)
        assert run.result()["epoch"] == 5
        daemon.end()


def test_a_new_driver_resumes_after_a_heads_death(binary: str, tmp_path: Path) -> None:
    cluster = Cluster(1)
    # The time that raylets and drivers run without their head.
    cluster.env["RAY_gcs_rpc_server_reconnect_timeout_s"] = "5"
    with cluster:
        daemon = cluster.serve()
        jobs = daemon.jobs()
        run = Run(cluster, daemon, tmp_path, "orphan", epochs=15, seconds=LONG, on_driver_death="resume")
        wait_for("training", lambda: list(tmp_path.glob("orphan/*/checkpoint-*")))
        before = jobs.find("orphan")
        assert before
        cluster.kill_head()
        wait_for("the driver to follow", lambda: run.process.poll() is not None)
        cluster.start_head()
        cluster.mend()
        run.hurry()
        run.start(resume=True)
        end = run.result()
        assert (end["job"], end["epoch"], end["step"]) == (before.job, 15, 120)
        assert [status.job for status in jobs.list(all=True)] == [before.job]
        after = jobs.find("orphan")
        assert after
        assert (after.submitted_ms, after.step) == (before.submitted_ms, 120)
        daemon.end()
