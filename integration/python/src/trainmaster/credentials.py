"""Tokens and certificates of clients, and the places where they are found."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from .errors import TrainmasterError

# The maximum of bytes read from a file.
_LONGEST = 64 << 10
_TOKEN = re.compile(r"[!-~]{1,1024}")


@dataclass(frozen=True)
class Credentials:
    """The credentials of a client."""

    token: str = field(default="", repr=False)
    # Paths of PEM files.
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def find(
    place: str,
    token: str = "",
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
) -> Credentials:
    """Returns the given credentials, else those of the environment, else those of the discovery file for `place`
    (host:port).

    A job's program never uses the discovery file, which names the administrator's token. It uses the job's token.
    """
    given = os.environ.get
    is_job = bool(given("TRAINMASTER_JOB"))
    cert, key = cert or given("TRAINMASTER_CERT"), key or given("TRAINMASTER_KEY")
    if bool(cert) != bool(key):
        raise TrainmasterError(f"{'cert' if cert else 'key'}: a certificate and its key go together; give both")
    note = {} if is_job else _noted(place)
    if not token:
        if token_file:
            token = read_token("token_file", token_file)
        elif named := given("TRAINMASTER_TOKEN_FILE"):
            token = read_token("TRAINMASTER_TOKEN_FILE", named)
        elif is_job:
            token = given("TRAINMASTER_TOKEN", "")
        elif not cert and (noted := note.get("token_file")):
            token = read_token(f"the token of the daemon at {place}", noted)
    if token:
        check(token)
    files = (ca or given("TRAINMASTER_CA") or note.get("ca"), cert, key)
    return Credentials(token, *(Path(file).expanduser() if file else None for file in files))


def check(token: str, name: str = "token") -> str:
    """Returns the token. Raises `TrainmasterError`, without the token, if it can't be sent in a header."""
    if not _TOKEN.fullmatch(token):
        raise TrainmasterError(f"{name}: it must be one word of 1 to 1024 visible ASCII characters")
    return token


def read_token(name: str, path: str | Path) -> str:
    return check(read_secret(name, path).decode("ascii", "replace").strip(), f"{name}: {path}")


def read_secret(name: str, path: str | Path) -> bytes:
    """Reads a file that only its owner can change, and that others can't read."""
    path = Path(path).expanduser()
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise TrainmasterError(f"{name}: {path} is not a regular file")
            # Reading by the group is allowed, because it has to be set up on purpose.
            if found.st_mode & 0o027:
                mode = stat.S_IMODE(found.st_mode)
                raise TrainmasterError(
                    f"{name}: {path} has mode {mode:o}, so others can read or change it; run chmod 600 {path}"
                )
            return file.read(_LONGEST)
    except OSError as error:
        raise TrainmasterError(f"{name}: {path}: {error.strerror}") from None


def read_certificate(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TrainmasterError(f"{name}: {path}: {error.strerror}") from None


def _noted(place: str) -> dict[str, str]:
    """Reads the discovery file of a running daemon. The daemon holds a lock on it. Without the lock, the daemon has
    been killed, and another program that listens on its port must not get the token.
    """
    home = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    try:
        with (home / "trainmaster/daemons" / place).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return {}
            except BlockingIOError:
                pass
            note = json.loads(file.read(_LONGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: value for key, value in note.items() if isinstance(value, str)} if isinstance(note, dict) else {}
