"""A job's folder beside those of other users: its record and its checkpoints."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trainmaster import Job, Role, TrainmasterError
from trainmaster.ray import checkpoint
from trainmaster.ray.driver import Settings
from trainmaster.ray.record import Record

pytestmark = pytest.mark.minimum

SECRET = "0123456789abcdef0123456789abcdef"
GOOD = f'{{"job": 7, "token": "{SECRET}"}}'
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made/a"


def test_a_record_reads_back_and_is_private(folder: Path) -> None:
    record = Record(folder)
    assert record.read() is None
    record.write(7, SECRET)
    # A partial file of a driver that was killed during the write.
    (folder / "trainmaster.partial").symlink_to("/dev/null")
    record.write(8, SECRET)
    assert Record(folder).read() == (8, SECRET)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "trainmaster.json")]
    assert modes == [0o700, 0o600]
    record.remove()
    record.remove()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "[" * 4000,
        '{"job": true, "token": "x"}',
        '{"job": "7", "token": "x"}',
        '{"job": 0.5, "token": "x"}',
        '{"job": -1, "token": "x"}',
        f'{{"job": {"9" * 3000}, "token": "x"}}',
        '{"job": 7}',
        '{"job": 7, "token": ""}',
        '{"job": 7, "token": "two words"}',
        '{"job": 7, "token": "\\ud800"}',
        '{"job": 7, "token": ["x"]}',
        GOOD + " " * 5000,
    ],
)
def test_an_invalid_record_is_refused_with_a_remedy(folder: Path, text: str) -> None:
    record = Record(folder)
    (folder / "trainmaster.json").write_text(text)
    with pytest.raises(TrainmasterError, match="remove it to submit the job again") as error:
        record.read()
    assert len(str(error.value)) < 500


def test_a_record_must_be_a_regular_file(folder: Path) -> None:
    record, path, other = Record(folder), folder / "trainmaster.json", folder / "other"
    other.write_text(GOOD)
    path.symlink_to(other)
    with pytest.raises(TrainmasterError, match=r"trainmaster.json: a symbolic link"):
        record.read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TrainmasterError, match="not a regular file"):
        record.read()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_with_write_access_for_others_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(TrainmasterError, match=f"mode {mode:o}, so others can change it"):
        Record(folder)


def test_a_folder_shared_with_a_group_is_accepted(folder: Path) -> None:
    """Sharing with a group has to be set up on purpose, if Ray's workers run as another user."""
    folder.mkdir(parents=True)
    folder.chmod(0o2770)
    Record(folder).write(7, SECRET)
    assert Record(folder).read() == (7, SECRET)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change owners")
def test_files_of_another_user_are_refused(folder: Path) -> None:
    record, path = Record(folder), folder / "trainmaster.json"
    path.write_text(GOOD)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(TrainmasterError, match=f"{path} belongs to user {NOBODY}"):
        record.read()
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(TrainmasterError, match=f"{folder} belongs to user {NOBODY}"):
        Record(folder)


def test_other_names_are_not_checkpoints(tmp_path: Path) -> None:
    names = [
        "checkpoint-20",
        "checkpoint-3",
        "checkpoint-" + "9" * 240,
        "checkpoint-٩٩",
        "checkpoint--1",
        "checkpoint-",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "checkpoint-20"
    with checkpoint.saving(tmp_path, 21):
        pass
    assert checkpoint.step_of(checkpoint.newest(tmp_path)) == 21


def test_a_drivers_token_is_not_printed(tmp_path: Path) -> None:
    job = Job("a", Role(cpu=1), mode="allreduce")
    settings = Settings(job, 7, "secret", "localhost:7070", None, object, None, tmp_path, "cancel", None)
    assert "secret" not in f"{settings!r} {settings}"
