"""Help as plain text: rich's tables cut the names of options when a terminal is narrow."""

from typing import Any

from typer.core import TyperCommand


class PlainHelp(TyperCommand):
    """A command whose options stand under the headings of their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: D102
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panel = getattr(parameter, "rich_help_panel", None) or kind  # click's own --help has none
            name, text = record
            # Typer escapes its own brackets for rich even when rich does not print them.
            panels.setdefault(panel, []).append((name, text.replace(r"\[", "[")))
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence, whole: it is wrapped, and need not be cut."""
        return super().get_short_help_str(limit=1000)
