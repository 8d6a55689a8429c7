"""`python -m fedmef` is the command `fedmef`."""

from fedmef.cli.app import command

if __name__ == "__main__":
    command()
