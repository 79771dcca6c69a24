"""Trainmaster on Ray: elastic training jobs in placement groups that Trainmaster sizes, places and resizes.

with trainmaster.ray.connect("localhost:7070") as tm:
    result = tm.fit(Job(...), worker=MyWorker, server=PSServer)
"""

from .allreduce import AllReduceWorker
from .context import Context, Peer
from .driver import Change, Result
from .ps import PSServer, PSWorker
from .session import Session, connect
from .torchrun import Torchrun
from .training import Trainer

__all__ = [
    "AllReduceWorker",
    "Change",
    "Context",
    "PSServer",
    "PSWorker",
    "Peer",
    "Result",
    "Session",
    "Torchrun",
    "Trainer",
    "connect",
]
