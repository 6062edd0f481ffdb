"""What generates tokens: the protocols, the scripted engine, and engines in this process and on servers."""
