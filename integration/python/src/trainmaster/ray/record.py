"""A job's number and token, stored with its checkpoints for the next driver."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from pathlib import Path

from ..errors import TrainmasterError
from .document import BadDocument, decode, is_count

_LONGEST = 4096
_TOKEN = re.compile(r"[!-~]{1,1024}")


class Record:
    """The file `trainmaster.json` in a job's folder. Other users may have folders beside it."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder for its owner only. An existing folder must not be writable by others, who could otherwise
        replace the job's checkpoints.
        """
        self._path = folder / "trainmaster.json"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # On shared file systems, new files can belong to another user.
            with tempfile.TemporaryFile(dir=folder) as probe:
                self._owners = {os.fstat(probe.fileno()).st_uid, 0}
            self._check(folder, folder.stat())
        except OSError as error:
            raise TrainmasterError(f"checkpoint_dir: {folder}: {error.strerror}") from None

    def read(self) -> tuple[int, str] | None:
        """The job's number and token. None without a record."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            link = error.errno == errno.ELOOP
            raise self._wrong("a symbolic link" if link else str(error.strerror)) from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            self._check(self._path, found)
            if not stat.S_ISREG(found.st_mode):
                raise self._wrong("not a regular file")
            text = file.read(_LONGEST + 1)
        try:
            known = decode(text, _LONGEST)
        except BadDocument as fault:
            raise self._wrong(str(fault)) from None
        job, token = known.get("job"), known.get("token")
        if not is_count(job, 2**64 - 1) or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise self._wrong("must have a job's number and token")
        return int(known["job"]), token

    def write(self, job: int, token: str) -> None:
        partial = self._path.with_suffix(".partial")
        # A killed driver can leave this file.
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"job": job, "token": token}, file)
        partial.rename(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _check(self, path: Path, found: os.stat_result) -> None:
        if found.st_uid not in self._owners or found.st_mode & 0o002:
            mode = stat.S_IMODE(found.st_mode)
            raise TrainmasterError(
                f"checkpoint_dir: {path} belongs to user {found.st_uid} with mode {mode:o}, so others can change it; "
                "use another checkpoint_dir, or make it yours (chown, chmod o-w)"
            )

    def _wrong(self, problem: str) -> TrainmasterError:
        return TrainmasterError(f"{self._path}: {problem}; remove it to submit the job again")
