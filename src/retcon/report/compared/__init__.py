"""The report of `retcon compare`: reading its runs, and writing its tables and figures."""
