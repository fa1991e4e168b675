"""Where runs live. Ports in `ports.py`; `follow.py` is how anybody reads a run that is still growing."""
