"""The panels of report.html, one per file (`report/panel.py`)."""
