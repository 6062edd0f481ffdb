"""Task sets from files, hub data sets, families and your own classes.

`FileTaskSettings(path="problems.jsonl").open()` is the entry point (`settings.py`); `load.py` shows the way of a row,
top to bottom.
"""
