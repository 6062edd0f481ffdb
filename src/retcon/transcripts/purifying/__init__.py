"""Files from end to end: what goes where, over several cores, counted, and resumed."""
