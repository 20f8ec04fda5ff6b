"""The trace: one stream of events that follows a prompt through the 21 stages.

Any package may import this one; it imports none of them. What writes (`logger`) is a separate
module, so that a package that only marks its stages does not load structlog.
"""

from .current import add_reporter, is_on, mark, start, stop
from .events import STAGES, Stage
from .records import Details, Event, TensorInfo
from .tracer import Tracer

__all__ = [
    "STAGES",
    "Details",
    "Event",
    "Stage",
    "TensorInfo",
    "Tracer",
    "add_reporter",
    "is_on",
    "mark",
    "start",
    "stop",
]
