"""The ways in which a client finds its credentials, and their secrecy."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from trainmaster import Job, Refused, Role, TrainmasterError
from trainmaster.channel import Jobs
from trainmaster.credentials import Credentials, find
from trainmaster.loop import slot_of
from trainmaster.reporter import Reporter, Slot
from trainmaster.testing import Daemon, daemon_binary, free_port

pytestmark = pytest.mark.minimum

PLACE = "127.0.0.1:7070"
SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without credentials and without discovery file."""
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_") and name != "TRAINMASTER_BIN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg"


HELD: list[IO[str]] = []


def secret_file(path: Path, secret: str = SECRET, mode: int = 0o600) -> Path:
    path.write_text(f"{secret}\n")
    path.chmod(mode)
    return path


def write_discovery(home: Path, text: str | None = None, **fields: object) -> None:
    folder = home / "trainmaster/daemons"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLACE).write_text(json.dumps(fields) if text is None else text)
    # The lock of a running daemon.
    file = (folder / PLACE).open()
    fcntl.flock(file, fcntl.LOCK_EX)
    HELD.append(file)


def test_a_killed_daemon_gets_no_token(home: Path, tmp_path: Path) -> None:
    write_discovery(home, token_file=str(secret_file(tmp_path / "a", "noted")))
    assert find(PLACE).token == "noted"
    HELD.pop().close()
    assert find(PLACE) == Credentials(), "another program may listen there now"


def test_given_credentials_have_precedence_over_found_ones(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(PLACE) == Credentials()
    write_discovery(home, token_file=str(secret_file(tmp_path / "a", "noted")), ca="/noted.pem")
    assert find(PLACE) == Credentials("noted", Path("/noted.pem"))
    assert find("127.0.0.1:7071") == Credentials()
    assert find(PLACE, cert="/c", key="/k").token == "", "a client certificate replaces the administrator's token"
    monkeypatch.setenv("TRAINMASTER_TOKEN_FILE", str(secret_file(tmp_path / "b", "named")))
    monkeypatch.setenv("TRAINMASTER_CA", "/named.pem")
    assert find(PLACE) == Credentials("named", Path("/named.pem"))
    given = secret_file(tmp_path / "c", "given")
    assert find(PLACE, token_file=given, ca="/given.pem") == Credentials("given", Path("/given.pem"))
    assert find(PLACE, "itself", given).token == "itself"


def test_a_jobs_program_never_uses_the_administrators_token(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_discovery(home, token_file=str(secret_file(tmp_path / "a")), ca=None)
    monkeypatch.setenv("TRAINMASTER_JOB", "7")
    assert find(PLACE).token == ""
    monkeypatch.setenv("TRAINMASTER_TOKEN", "the-jobs-own")
    assert find(PLACE).token == "the-jobs-own"
    monkeypatch.setenv("TRAINMASTER_TOKEN_FILE", str(secret_file(tmp_path / "b", "named")))
    assert find(PLACE).token == "named"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 50_000, "null", "[1]", '{"token_file": 7, "ca": {}}', '{"ca": null}', "\x00\xff", "9" * 5000],
)
def test_an_invalid_discovery_file_is_ignored(home: Path, text: str) -> None:
    write_discovery(home, text)
    assert find(PLACE) == Credentials()


@pytest.mark.parametrize("mode", [0o604, 0o640 | 0o020, 0o602, 0o644, 0o666, 0o601])
def test_a_token_with_access_for_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "token", mode=mode)
    with pytest.raises(TrainmasterError) as error:
        find(PLACE, token_file=path)
    message = str(error.value)
    assert f"{path} has mode {mode:o}" in message
    assert f"chmod 600 {path}" in message
    assert SECRET not in message


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_token_readable_by_a_group_is_accepted(tmp_path: Path, mode: int) -> None:
    assert find(PLACE, token_file=secret_file(tmp_path / "token", mode=mode)).token == SECRET


@pytest.mark.parametrize("secret", ["", "two words", "caf\u00e9", "line\nfeed", "x" * 2000, "\x1b[2J", "x" * 100_000])
def test_an_invalid_token_is_not_in_the_message(tmp_path: Path, secret: str) -> None:
    path = secret_file(tmp_path / "token", secret)
    with pytest.raises(TrainmasterError, match="visible ASCII") as error:
        find(PLACE, token_file=path)
    assert str(path) in str(error.value)
    assert not secret or secret not in str(error.value)
    if secret:
        with pytest.raises(TrainmasterError, match="visible ASCII") as error:
            Jobs(PLACE, secret)
        assert secret not in str(error.value)


def test_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(TrainmasterError, match=r"token_file: .*none: No such file"):
        find(PLACE, token_file=tmp_path / "none")
    with pytest.raises(TrainmasterError, match=f"token_file: {tmp_path}: Is a directory"):
        find(PLACE, token_file=tmp_path)
    monkeypatch.setenv("TRAINMASTER_TOKEN_FILE", "/dev/null")
    with pytest.raises(TrainmasterError, match="TRAINMASTER_TOKEN_FILE: /dev/null is not a regular file"):
        find(PLACE)


def test_a_certificate_needs_its_key_and_https(tmp_path: Path) -> None:
    with pytest.raises(TrainmasterError, match=r"cert: .* give both"):
        Jobs(f"https://{PLACE}", cert="/c")
    with pytest.raises(TrainmasterError, match="only an https daemon"):
        Jobs(PLACE, cert="/c", key="/k")
    cert = tmp_path / "cert.pem"
    cert.touch()
    with pytest.raises(TrainmasterError, match=r"key: .* chmod 600"):
        Jobs(f"https://{PLACE}", cert=cert, key=secret_file(tmp_path / "key.pem", mode=0o644))


def test_an_address_with_a_password_is_not_repeated() -> None:
    with pytest.raises(TrainmasterError) as error:
        Jobs(f"http://me:{SECRET}@{PLACE}")
    assert SECRET not in str(error.value)


def test_tokens_are_not_printed_or_pickled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    environment = {"TRAINMASTER_JOB": "7", "TRAINMASTER_FEED": PLACE, "TRAINMASTER_TOKEN": SECRET}
    jobs = Jobs(f"127.0.0.1:{free_port()}", SECRET)
    reporter = Reporter(f"127.0.0.1:{free_port()}", Slot("7", SECRET), interval=0.01)
    holders: list[object] = [
        Slot("7", SECRET),
        slot_of(environment),
        Credentials(SECRET),
        jobs,
        reporter,
    ]
    assert not [holder for holder in holders if SECRET in f"{holder!r} {holder}"]
    for holder in (jobs, reporter):
        with pytest.raises(TypeError):
            pickle.dumps(holder)
    reporter.close(0.2)
    assert SECRET not in caplog.text


@pytest.fixture
def daemon(binary: str, tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, "none", env=os.environ)
    yield daemon
    daemon.end()


def test_this_users_daemon_is_found(daemon: Daemon) -> None:
    Jobs(daemon.address).list()
    Jobs(daemon.address.replace("127.0.0.1", "localhost")).list()


def test_a_refusal_says_how_to_give_a_token(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As another user.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "others"))
    with pytest.raises(Refused, match=r"token_file=.* TRAINMASTER_TOKEN_FILE"):
        Jobs(daemon.address).list()
    reader = tmp_path / "reader"
    daemon.make_token("reader", reader, "--role=read")
    with pytest.raises(Refused, match=r"role read.* token_file="):
        Jobs(daemon.address, token_file=reader).submit(Job("a", Role(cpu=1), mode="allreduce"))
    with pytest.raises(Refused, match=r"tenant.* token_file="):
        daemon.jobs().submit(Job("a", Role(cpu=1), mode="allreduce", tenant="other"))


class Secured(Daemon):
    """A daemon with TLS."""

    scheme = "https"


def test_a_certificate_replaces_the_token(binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certs = tmp_path / "certs"
    client = ["client", "ci", "--role=submit", "--tenant=default"]
    made = [
        subprocess.run([daemon_binary(), "certs", *arguments, f"--dir={certs}"], check=True, capture_output=True)
        for arguments in (["init"], client)
    ]
    config = tmp_path / "daemon.toml"
    config.write_text(made[0].stdout.decode().partition("configuration:")[2].partition("Clients")[0])
    daemon = Secured(tmp_path, "none", f"--config={config}", env=os.environ)
    address = f"https://{daemon.address}"
    Jobs(address).list()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "others"))
    own: Any = {"ca": certs / "ca.pem", "cert": certs / "ci.pem", "key": certs / "ci-key.pem"}
    jobs = Jobs(address, **own)
    assert jobs.ca == own["ca"], "for the reports, too"
    number, _ = jobs.submit(Job("mine", Role(cpu=1), mode="allreduce"))
    assert jobs.find("mine")
    with pytest.raises(Refused, match="token_file="):
        Jobs(address, ca=own["ca"]).list()
    for name, path in own.items():
        monkeypatch.setenv(f"TRAINMASTER_{name.upper()}", str(path))
    Jobs(address).cancel(str(number))
    daemon.end()
