"""Tasks from data: files, data sets of the hub, families and task sets of one's own, as one task set.

`FileTaskSettings(path="problems.jsonl").open()` is where it begins (`settings.py`); what happens to a row stands in
`load.py`, top to bottom.
"""
