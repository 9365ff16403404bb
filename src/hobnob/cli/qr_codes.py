"""QR codes in a terminal."""

from __future__ import annotations

import io

from rich.console import Console


def show(out: Console, text: str) -> None:
    """Print a QR code, and the text itself where there is no terminal to show it."""
    import segno

    if not out.is_terminal:
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    lines = io.StringIO()
    segno.make(text, micro=False, error="l").terminal(lines, compact=True)
    out.file.write(lines.getvalue())
    out.file.flush()
