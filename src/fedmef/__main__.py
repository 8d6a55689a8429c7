"""`python -m fedmef` is the command `fedmef`."""

from fedmef.cli.app import main

if __name__ == "__main__":
    main()
