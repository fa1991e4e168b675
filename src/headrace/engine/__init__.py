"""The model side. `port.py` says what an engine is; each adapter has its own file."""
