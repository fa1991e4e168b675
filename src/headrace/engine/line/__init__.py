"""Requests that wait for a place, and who is next. For one engine, `engine_line.py`; for several, `pool/`."""
