"""A job's folder, where others may have been first: its record, and its checkpoints."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trainmaster import TrainmasterError
from trainmaster.ray import checkpoint
from trainmaster.ray.record import Record

pytestmark = pytest.mark.minimum

SECRET = "0123456789abcdef0123456789abcdef"
GOOD = f'{{"job": 7, "token": "{SECRET}"}}'
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made/a"


def test_a_record_reads_back_and_nobody_else_reads_it(folder: Path) -> None:
    record = Record(folder)
    assert record.read() is None
    record.write(7, SECRET)
    # After a driver that was killed while it wrote.
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
def test_a_record_that_makes_no_sense_says_what_to_do(folder: Path, text: str) -> None:
    record = Record(folder)
    (folder / "trainmaster.json").write_text(text)
    with pytest.raises(TrainmasterError, match="remove it to submit the job again") as error:
        record.read()
    assert len(str(error.value)) < 500


def test_a_record_that_is_no_file_is_not_followed(folder: Path) -> None:
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
def test_a_folder_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(TrainmasterError, match=f"mode {mode:o}: others can change it"):
        Record(folder)


def test_a_folder_that_a_group_shares_is_taken(folder: Path) -> None:
    """It takes a person to set up, where Ray's workers run as another user."""
    folder.mkdir(parents=True)
    folder.chmod(0o2770)
    Record(folder).write(7, SECRET)
    assert Record(folder).read() == (7, SECRET)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_is_anothers_is_refused(folder: Path) -> None:
    record, path = Record(folder), folder / "trainmaster.json"
    path.write_text(GOOD)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(TrainmasterError, match=f"{path} belongs to user {NOBODY}"):
        record.read()
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(TrainmasterError, match=f"{folder} belongs to user {NOBODY}"):
        Record(folder)


def test_what_is_no_checkpoint_is_left_out(tmp_path: Path) -> None:
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
