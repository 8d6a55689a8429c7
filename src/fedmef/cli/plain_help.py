"""Help as plain text: rich's tables cut the names of options when a terminal is narrow."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class PlainHelp(TyperCommand):
    """A command whose options stand under the headings of their panels."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """All but hidden arguments, which are only there to be refused with a better error."""
        shown = [parameter for parameter in self.get_params(ctx) if not getattr(parameter, "hidden", False)]
        pieces = [piece for parameter in shown for piece in parameter.get_usage_pieces(ctx)]
        return [self.options_metavar or "", *pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
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


def command_app(command: Callable[..., None]) -> typer.Typer:
    """A command as an app of its own."""
    app = typer.Typer(**SETTINGS)
    app.command(cls=PlainHelp)(command)
    return app
