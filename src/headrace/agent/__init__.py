"""The loop: model, tools, model. `port.py` says what an agent is; `loop.py` is the one most people use."""
