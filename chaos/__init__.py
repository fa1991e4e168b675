"""Break everything at random, by a seed, and count what was lost: Headrace and its rivals, by one harness.

`plan.py` says what every run will say and do, `campaign.py` breaks things meanwhile and collects what was seen,
`verdict.py` judges it. Whatever a rival imports in its own environment (`plan.py`, `ledger.py`) is standard library
only.
"""
