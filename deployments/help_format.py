"""How `headwater COMMAND --help` looks: every option with a default says it.

Not those without one, nor switches: they are off until they are given.
"""

import argparse


class HelpWithDefaults(argparse.HelpFormatter):
    """Options need a help text to show anything."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """As argparse's own formatters have it, which show None, False and [] as well."""
        default = action.default
        is_shown = bool(action.option_strings and action.help) and default != argparse.SUPPRESS
        if not is_shown or default is None or isinstance(default, bool) or default == []:
            return action.help
        values = default if isinstance(default, list) else [default]
        text = " ".join(
            f"{value:g}" if isinstance(value, float) else str(value) for value in values
        )
        return f"{action.help} (default: {text.replace('%', '%%')})"
