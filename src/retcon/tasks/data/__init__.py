"""Tasks from data: files, hub data sets, families and task sets of your own, as one task set.

`FileTaskSettings(path="problems.jsonl").open()` is where it begins (`settings.py`); what happens to a row stands in
`load.py`, top to bottom.
"""
