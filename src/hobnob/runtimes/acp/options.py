"""Session options of a harness: mode, model and thinking level.

Each harness has its own names for the values, so a value is looked up among those it offers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from hobnob.errors import HarnessFailed
from hobnob.records import Struct

OptionKind = Literal["mode", "model", "thinking level"]

# The category in the protocol, and the ids that harnesses use for options without a category.
_NAMES: dict[OptionKind, tuple[str, tuple[str, ...]]] = {
    "mode": ("mode", ("mode",)),
    "model": ("model", ("model",)),
    "thinking level": ("thought_level", ("thinking", "effort", "reasoning_effort", "thought_level")),
}


class OptionChoice(Struct, frozen=True):
    """A value to set: of an option, or of the session mode if `option_id` is None."""

    option_id: str | None
    value: str


def choose(harness: str, session: Any, kind: OptionKind, requested: str) -> OptionChoice | None:
    """What to set for the requested value; None if the session has it already. Raises HarnessFailed.

    A mode is always set: it decides whether the harness asks for permissions.
    """
    option = _option(session.config_options or (), kind)
    if option is not None:
        values, current, option_id = dict(_values(option.options)), option.current_value, option.id
    elif kind == "mode" and session.modes is not None:
        values = {mode.id: mode.name for mode in session.modes.available_modes}
        current, option_id = session.modes.current_mode_id, None
    else:
        raise HarnessFailed(
            f"The harness {harness!r} does not support choosing a {kind}.", fix=f"Leave the {kind} out."
        )
    value = requested if requested in values else _by_name(values, requested)
    if value is None:
        known = ", ".join(values) or "none"
        raise HarnessFailed(f"The harness {harness!r} has no {kind} {requested!r}.", fix=f"It has: {known}.")
    return OptionChoice(option_id, value) if value != current or kind == "mode" else None


def model_of(options: Iterable[Any] | None) -> str | None:
    """The model of a session, if the harness reports it."""
    option = _option(options or (), "model")
    return option.current_value if option is not None else None


def _option(options: Iterable[Any], kind: OptionKind) -> Any:
    category, ids = _NAMES[kind]
    offered = [option for option in options if option.type == "select"]
    named = [option for option in offered if option.category is None and option.id in ids]
    return next(iter([option for option in offered if option.category == category] + named), None)


def _values(options: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for option in options:
        if hasattr(option, "options"):  # a group of options
            yield from _values(option.options)
        else:
            yield option.value, option.name


def _by_name(values: dict[str, str], requested: str) -> str | None:
    folded = requested.casefold()
    return next((v for v, name in values.items() if folded in (v.casefold(), name.casefold())), None)
