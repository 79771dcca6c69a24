"""A driver as a user has it, for a job file: `ray_driver.py JOB_FILE ADDRESS TOKEN_FILE`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import tomllib

from trainmaster import Job
from trainmaster.ray import Context, Torchrun, connect

file, address, token_file = sys.argv[1:]
fields = tomllib.loads(Path(file).read_text())
command = shlex.split(fields["worker"].pop("command"))


class Program:
    """A worker that runs the command."""

    def run(self, ctx: Context) -> None:
        subprocess.run(command, check=True)


agents = Path(command[0]).name == "torchrun"
if not agents:
    del fields["workdir"], fields["env"]  # Only agents have them.
with connect(address, token_file=token_file, checkpoint_dir=Path(file).with_suffix("")) as tm:
    tm.fit(Job.from_dict(fields), worker=Torchrun(command[1], command[2:]) if agents else Program)
