"""A driver whose job does nothing until a file ends it.

`idle.py '{"address": …, "token_file": …, "dir": …, "job": {…}}'`
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import trainmaster.ray
from trainmaster import Job, TrainmasterError
from trainmaster.ray import Context


class Idle:
    """A worker that waits."""

    def __init__(self, over: Path) -> None:
        self._over = over

    def run(self, ctx: Context) -> None:
        while not self._over.exists() and not ctx.should_stop():
            time.sleep(0.1)


class IdleServer:
    """A parameter server that does nothing."""

    def begin(self, ctx: Context) -> None:
        """Does nothing."""


def main() -> None:
    options = json.loads(sys.argv[1])
    folder = Path(options["dir"])
    job = Job.from_dict(options["job"])
    out, over = folder / f"{job.name}.json", folder / f"{job.name}.over"
    try:
        with trainmaster.ray.connect(options["address"], token_file=options["token_file"], checkpoint_dir=folder) as tm:
            tm.fit(job, worker=lambda: Idle(over), server=IdleServer if job.server else None)
        document = {"result": "completed"}
    except TrainmasterError as error:
        document = {"error": str(error)}
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps(document))
    partial.rename(out)


if __name__ == "__main__":
    main()
