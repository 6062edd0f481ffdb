"""How alike two programs are: what difflib would match, sooner."""
