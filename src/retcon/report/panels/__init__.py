"""The panels of report.html, one a file (`report/panel.py`)."""
