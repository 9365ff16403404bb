"""Every setting is read by some code, or says that it has no effect yet."""

import ast
from collections.abc import Iterator
from pathlib import Path

from hobnob.config import Settings
from hobnob.config.channels import ChannelAccount, ChannelRoot
from hobnob.config.channels.chats import PLATFORMS
from hobnob.config.fields import NO_EFFECT_YET, Section
from hobnob.config.leaves import section_in

SOURCES = sorted((Path(__file__).parent.parent.parent / "src" / "hobnob").rglob("*.py"))
# Functions and variables that hold a section, by its name.
ACCESSORS = {
    "Agent": {"agent", "agent_list", "default_agent"},
    "Group": {"group", "own"},
    "RehearsalStep": {"script"},
    "BlueBubbles": {"settings"},
    "Compaction": {"_settings"},
    "DeclaredJob": {"JobSpec"},
    "JobDelivery": {"delivery_of"},
}
# Read by name: the channels and their accounts. Never read: a note for people.
BY_NAME = {*(f"Channels.{name}" for name in PLATFORMS), "Binding.comment"}


def sections(
    kind: type[Section], name: str, inert: bool = False
) -> Iterator[tuple[type[Section], str, bool]]:
    """Every section with the name of the field that holds it, and whether that has no effect yet."""
    yield kind, name, inert
    for field, info in kind.model_fields.items():
        # The accounts of a channel have the settings of the channel.
        if (inner := section_in(info.annotation)) is not None and not issubclass(kind, inner):
            yield from sections(inner, field, inert or NO_EFFECT_YET in info.metadata)


def word(node: ast.expr) -> str:
    """The last name in an expression: what its value is probably called after."""
    match node:
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
        case ast.Subscript():
            return word(node.value)
        case ast.Call(ast.Attribute(value, "get" | "items" | "values"), _):
            return word(value)
        case ast.Call(ast.Name("enumerate" | "sorted" | "next"), [first, *_]):
            return word(first)
        case ast.Call():
            return word(node.func)
        case ast.BoolOp() | ast.IfExp():
            return word(node.values[-1] if isinstance(node, ast.BoolOp) else node.body)
    return ""


def assignments(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that are bound to something, and what that is called."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets, value):
                for target in targets:
                    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                        for one, bound in zip(target.elts, value.elts, strict=False):
                            yield word(one), word(bound)
                    else:
                        yield word(target), word(value)
            case ast.ClassDef(name) if name in {kind.__name__ for kind, _, _ in sections(Settings, "")}:
                yield "self", name
            case ast.NamedExpr(target, value):
                yield target.id, word(value)
            case ast.arg(name, ast.Name() | ast.BinOp() as annotation):
                left = annotation.left if isinstance(annotation, ast.BinOp) else annotation
                yield name, word(left)
            case ast.For(target, iterated) | ast.comprehension(target, iterated):
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield name.id, word(iterated)


def reads() -> dict[str, set[str]]:
    """Each attribute that is read somewhere, with what the object before it may be called."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        also_called: dict[str, set[str]] = {}
        for name, bound in assignments(tree):
            also_called.setdefault(name, set()).add(bound)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                base = word(node.value)
                found.setdefault(node.attr, set()).update({base, *also_called.get(base, ())})
    return found


def test_every_setting_is_read_or_says_that_it_has_no_effect_yet() -> None:
    seen = reads()
    unread = []
    for kind, held_by, inert in set(sections(Settings, "settings")):
        names = {held_by, kind.__name__} | ACCESSORS.get(kind.__name__, set())
        names |= {"account", "settings"} if issubclass(kind, ChannelAccount | ChannelRoot) else set()
        for field, info in kind.model_fields.items():
            if (
                field not in kind.__annotations__
                or field == "accounts"
                or f"{kind.__name__}.{field}" in BY_NAME
            ):
                continue  # declared in a base class, or read by name
            has_no_effect = inert or NO_EFFECT_YET in info.metadata
            if has_no_effect == bool(seen.get(field, set()) & names):
                unread.append(f"{kind.__name__}.{field} (no effect yet: {has_no_effect})")
    assert unread == []
