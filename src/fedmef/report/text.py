"""Text from a run, which may be anybody's, as HTML that shows it."""

import html

from fedmef.errors import printable


def escape(text: str) -> str:
    """Every character as text; only ends of lines stay what they are."""
    return "\n".join(html.escape(printable(line)) for line in text.split("\n"))
