"""What a harness lets one choose for a session: its mode, its model, how hard it thinks.

Each harness has words of its own. What is asked for is looked up among what it offers before it is set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from hobnob.errors import HarnessFailed

What = Literal["mode", "model", "thinking level"]

# The category of the protocol, and the ids harnesses use for an option that has none.
_NAMES: dict[What, tuple[str, tuple[str, ...]]] = {
    "mode": ("mode", ("mode",)),
    "model": ("model", ("model",)),
    "thinking level": ("thought_level", ("thinking", "effort", "reasoning_effort", "thought_level")),
}


@dataclass(frozen=True, slots=True)
class OptionChoice:
    """Something to set: an option by its id, or the mode of a session when there is no such option."""

    option_id: str | None
    value: str


def choose(harness: str, session: Any, what: What, asked: str) -> OptionChoice | None:
    """What to set so that the session has what is asked for; None when it has. Raises HarnessFailed.

    A mode is always set: it decides whether we are asked at all.
    """
    option = _option(session.config_options or (), what)
    if option is not None:
        values, current, option_id = dict(_values(option.options)), option.current_value, option.id
    elif what == "mode" and session.modes is not None:
        values = {mode.id: mode.name for mode in session.modes.available_modes}
        current, option_id = session.modes.current_mode_id, None
    else:
        raise HarnessFailed(
            f"The harness {harness!r} lets no {what} be chosen.", fix=f"Leave the {what} out."
        )
    value = asked if asked in values else _by_name(values, asked)
    if value is None:
        known = ", ".join(values) or "none"
        raise HarnessFailed(f"The harness {harness!r} has no {what} {asked!r}.", fix=f"It has: {known}.")
    return OptionChoice(option_id, value) if value != current or what == "mode" else None


def model_of(options: Iterable[Any] | None) -> str | None:
    """The model a session runs on, where the harness says so."""
    option = _option(options or (), "model")
    return option.current_value if option is not None else None


def _option(options: Iterable[Any], what: What) -> Any:
    category, ids = _NAMES[what]
    offered = [option for option in options if option.type == "select"]
    named = [option for option in offered if option.category is None and option.id in ids]
    return next(iter([option for option in offered if option.category == category] + named), None)


def _values(options: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for option in options:
        if hasattr(option, "options"):  # a group of them
            yield from _values(option.options)
        else:
            yield option.value, option.name


def _by_name(values: dict[str, str], asked: str) -> str | None:
    wanted = asked.casefold()
    return next((v for v, name in values.items() if wanted in (v.casefold(), name.casefold())), None)
