"""What runs inside: the zygotes, the workers that they fork, and the processes of the calls. Standard library alone."""
