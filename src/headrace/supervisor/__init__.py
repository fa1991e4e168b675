"""Which runs this process works on: `supervisor.py` decides, `work.py` is one of them."""

from headrace.supervisor.supervisor import Supervisor

__all__ = ["Supervisor"]
