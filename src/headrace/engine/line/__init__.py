"""Requests that wait for a place, and who is next. For one engine, `turns.py`; for several, `pool/`."""
