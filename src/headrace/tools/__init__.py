"""What a model may call. `port.py` says what a tool is; `function.py` makes one of a Python function."""
