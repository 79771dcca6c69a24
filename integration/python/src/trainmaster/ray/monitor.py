"""Ray's v2 autoscaler with Trainmaster's scheduler (strict mode). Runs instead of the monitor that Ray starts.

RAY_enable_autoscaler_v2=1 ray start --head --no-monitor …
python -m trainmaster.ray.monitor --address HOST:PORT --autoscaling-config FILE
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from .gcs import NAMESPACE

_LOG = logging.getLogger("trainmaster.ray.monitor")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m trainmaster.ray.monitor", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--address",
        default=os.environ.get("RAY_ADDRESS", "127.0.0.1:6379"),
        help="Ray's head, host:port (RAY_ADDRESS, else 127.0.0.1:6379)",
    )
    parser.add_argument(
        "--autoscaling-config", type=Path, required=True, help="the file for `ray start --autoscaling-config`"
    )
    parser.add_argument("--logs-dir", type=Path, help="the session's log folder, for Ray's events")
    parser.add_argument("--monitor-ip", help="this machine's address, for Ray's metrics of the autoscaler")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s\t%(levelname)s %(name)s -- %(message)s")
    logging.getLogger("trainmaster").setLevel(logging.INFO)
    if not options.autoscaling_config.is_file():
        parser.error(f"--autoscaling-config: {str(options.autoscaling_config)!r} must be a file")
    try:
        from ray.autoscaler.v2.instance_manager.config import FileConfigReader
        from ray.autoscaler.v2.monitor import AutoscalerMonitor
    except ImportError as error:
        parser.exit(1, f"Ray {ray.__version__} has no such monitor ({error}): start the head without --no-monitor\n")
    monitor = AutoscalerMonitor(
        options.address,
        FileConfigReader(str(options.autoscaling_config)),
        log_dir=options.logs_dir and str(options.logs_dir),
        monitor_ip=options.monitor_ip,
    )
    if reasons := replace_scheduler(monitor):
        _LOG.warning("Ray's own scheduler decides, since this Ray differs from the tested one: %s", "; ".join(reasons))
    monitor.run()


def replace_scheduler(monitor: Any) -> list[str]:
    """Wraps Ray's scheduler in Trainmaster's. Returns the reasons if that is not possible."""
    try:
        from .scheduler import StrictScheduler, differences
    except ImportError as error:
        return [str(error)]
    reasons = differences()
    if not hasattr(getattr(monitor.autoscaler, "_scheduler", None), "schedule"):
        reasons.append("Autoscaler has no _scheduler")
    if not reasons:
        fetch = partial(monitor.gcs_client.internal_kv_get, b"request", NAMESPACE.encode(), timeout=5)
        monitor.autoscaler._scheduler = StrictScheduler(monitor.autoscaler._scheduler, fetch)
    return reasons


if __name__ == "__main__":
    main()
