"""`retcon view`: trajectories and curves in a browser, from files alone."""
