"""Tables, plots and pages about runs."""
