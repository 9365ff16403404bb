"""Does what the fix of a refusal says: it is a command, and the settings are changed by it."""

import shlex
import tempfile
from pathlib import Path
from typing import Any

import orjson
import pyjson5

from hobnob.cli import config_edit


def paste(fix: str, tree: dict[str, Any]) -> None:
    """Run the `hobnob config set` at the end of a fix on a file with these settings, and read them again."""
    command = fix[fix.index("hobnob config set") :]
    words = shlex.split(command)
    assert words[:3] == ["hobnob", "config", "set"]
    assert "&&" not in words, "run the rest too"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "hobnob.json5")
        file.write_bytes(b"// A comment.\n" + orjson.dumps(tree))
        config_edit.set_values(file, list(zip(words[3::2], words[4::2], strict=True)))
        text = file.read_text()
    assert text.startswith("// A comment.\n")
    changed = pyjson5.decode(text)
    tree.clear()
    tree.update(changed)
