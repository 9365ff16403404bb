"""Verdicts: what the policy answers, and the sentence of a refusal."""

from __future__ import annotations

from hobnob.fixes import Fix
from hobnob.records import Struct


class Verdict(Struct, frozen=True):
    allowed: bool
    code: str
    why: str
    fix: tuple[Fix, ...] = ()


class Block(Struct, frozen=True):
    """A rule that denies the request. `why` is a clause; `sentence` joins several."""

    code: str
    why: str
    fix: Fix | None


def refused(blocks: list[Block]) -> Verdict | None:
    """The verdict for all blocks together. None if there are none."""
    return refusal(blocks) if blocks else None


def refusal(blocks: list[Block]) -> Verdict:
    """The verdict for all blocks together, with the code of the first."""
    why = sentence(*(block.why for block in blocks))
    return Verdict(False, blocks[0].code, why, tuple(block.fix for block in blocks if block.fix))


def sentence(*clauses: str) -> str:
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"
