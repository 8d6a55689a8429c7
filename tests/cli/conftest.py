from tests.cli.invoking import invoke

__all__ = ["invoke"]
