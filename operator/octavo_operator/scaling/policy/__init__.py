"""How many replicas: pure functions of what the pods showed, the state of before, the settings and the time."""

from .decide import recommend
from .fleet import Fleet, Pod, Wake
from .settings import PolicySettings
from .state import Change, State, UnknownStateError
from .verdict import Reason, Recommendation

__all__ = [
    "Change",
    "Fleet",
    "Pod",
    "PolicySettings",
    "Reason",
    "Recommendation",
    "State",
    "UnknownStateError",
    "Wake",
    "recommend",
]
