"""Rivals under the same plan. Each is installed in an environment of its own, and set up as its documentation says one
sets it up to survive; README.md (the section on rivals) says how and why.

`<name>.py` is the system as the harness sees it, `<name>_*.py` what runs in the rival's environment: standard library
and the rival's own packages only.
"""
