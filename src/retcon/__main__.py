"""`python -m retcon` is `retcon`."""

from retcon.cli.app import main

if __name__ == "__main__":
    main()
