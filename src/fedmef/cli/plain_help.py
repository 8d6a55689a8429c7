"""Help as plain text: rich's tables cut the names of options when a terminal is narrow."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fedmef.errors import unknown_name

SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


# Panels that few need; the others stand before them, in the order of their options.
LAST = ("Devices that fail", "Robust and private aggregation", "Messages", "Injected faults")


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
        for panel in sorted(panels, key=lambda panel: LAST.index(panel) + 1 if panel in LAST else 0):
            with formatter.section(panel):
                formatter.write_dl(panels[panel])


class NamedCommands(TyperGroup):
    """A group whose unknown commands are an error of our own: click and typer would both add a hint."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in (known := self.list_commands(ctx)):
            raise unknown_name("command", cmd_name, known)
        return super().get_command(ctx, cmd_name)


def command_app(command: Callable[..., None]) -> typer.Typer:
    """A command as an app of its own."""
    app = typer.Typer(**SETTINGS)
    app.command(cls=PlainHelp)(command)
    return app
