"""The committed stubs match the committed protocol."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainmaster._proto import feed_pb2

PACKAGE = Path(__file__).parents[1]


def test_the_stubs_are_up_to_date() -> None:
    done = subprocess.run([PACKAGE / "generate", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.minimum
def test_a_message_reads_back_with_this_protobuf() -> None:
    progress = feed_pb2.Progress(seq=1, loss=0.5)
    assert feed_pb2.Progress.FromString(progress.SerializeToString()) == progress
