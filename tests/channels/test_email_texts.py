"""Pure parts of the channel `email`: results on senders, addresses, quotes."""

from __future__ import annotations

import pytest

from hobnob.channels.email import outgoing
from hobnob.channels.email.incoming import one_address
from hobnob.channels.email.verification import why_unverified
from hobnob.workspaces.guest.mail_quotes import without_quotes

OWN = ["mx.example.org"]

PROVEN = {
    "DMARC": "mx.example.org; dmarc=pass (p=NONE) header.from=example.com",
    "DKIM of the domain": "mx.example.org 1; dkim=pass header.d=example.com header.s=k1",
    "DKIM by identity": "mx.example.org; dkim=pass header.i=@example.com",
    "SPF of the domain": "mx.example.org; spf=pass (sender is ok) smtp.mailfrom=ann@example.com",
    "signed in": "mx.example.org; auth=pass smtp.auth=ann@example.com",
}
NOT_PROVEN = {
    "another server": "mx.evil.example; dmarc=pass header.from=example.com",
    "another domain": "mx.example.org; dkim=pass header.d=evil.example",
    "a longer domain": "mx.example.org; dkim=pass header.d=evil-example.com",
    "a top-level domain": "mx.example.org; dkim=pass header.d=com",
    "failed": "mx.example.org; dkim=fail header.d=example.com",
    "refused by DMARC": "mx.example.org; dkim=pass header.d=example.com; dmarc=fail header.from=example.com",
    "in a comment": "mx.example.org; dkim=none (dkim=pass header.d=example.com)",
    "in quotes": 'mx.example.org; dkim=pass reason="header.d=example.com" header.d=evil.example',
    "in a quoted semicolon": 'mx.example.org; spf=fail reason="; dmarc=pass header.from=example.com"',
    "two values": "mx.example.org; dkim=pass header.d=evil.example header.d=example.com",
    "nothing": "mx.example.org; none",
}


@pytest.mark.promise("email.senders_are_proven")
@pytest.mark.parametrize("kind", PROVEN)
def test_a_sender_is_proven_by(kind: str) -> None:
    assert why_unverified("ann@example.com", [PROVEN[kind]], OWN) == ""


@pytest.mark.promise("email.senders_are_proven")
@pytest.mark.parametrize("kind", NOT_PROVEN)
def test_a_sender_is_not_proven_by(kind: str) -> None:
    assert why_unverified("ann@example.com", [NOT_PROVEN[kind]], OWN)


@pytest.mark.promise("email.senders_are_proven")
def test_only_the_topmost_results_of_the_own_server_count() -> None:
    forged = "mx.example.org; dmarc=pass header.from=example.com"
    assert why_unverified("ann@example.com", ["mx.example.org; spf=none", forged], OWN)


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ("Ann <Ann@Example.com>", "ann@example.com"),
        ("ann@example.com", "ann@example.com"),
        ('"bob@example.com" <ann@example.com>', "ann@example.com"),
        ("ann@example.com (Ann)", "ann@example.com"),
        ("bob@example.com <ann@example.com>", ""),
        ("Ann <ann@example.com>, Bob <bob@example.com>", ""),
        ("<ann@example.com> <bob@example.com>", ""),
        ("team: ann@example.com;", ""),
        ("ann", ""),
    ],
)
def test_a_sender_is_one_address_that_cannot_be_read_in_two_ways(header: str, address: str) -> None:
    assert one_address(header)[0] == address


QUOTES = {
    "top-posted": ("Yes.\n\nOn Monday, Bot <b@x> wrote:\n> no?\n", "Yes."),
    "attribution over two lines": (
        "Yes.\n\nOn Monday, 16 Nov 2026,\nBot <b@x> wrote:\n> no?\n> hm\n",
        "Yes.",
    ),
    "German": ("Ja.\n\nAm 16.11.2026 um 12:00 schrieb Bot:\n> nein?\n", "Ja."),
    "original message": ("Yes.\n\n-----Original Message-----\nFrom: Bot\nno?\n", "Yes."),
    "Outlook": ("Yes.\n\n_____\nFrom: Bot\nSent: Monday\nTo: Ann\nSubject: x\n\nno?\n", "Yes."),
    "answers in between": ("> a?\nYes.\n> b?\nNo.\n", "> a?\nYes.\n> b?\nNo."),
    "signature": ("Yes.\n-- \nAnn\nDirector\n", "Yes."),
    "only a quote": ("> a?\n", "> a?"),
    "forwarded": (
        "See below.\n---------- Forwarded message ---------\nFrom: x\n> deep\n",
        "See below.\n---------- Forwarded message ---------\nFrom: x\n> deep",
    ),
}


@pytest.mark.promise("email.quotes")
@pytest.mark.parametrize("kind", QUOTES)
def test_quotes_are_left_out_of_a_reply(kind: str) -> None:
    text, kept = QUOTES[kind]
    assert without_quotes(text) == kept


def test_a_reply_that_was_html_ends_where_its_quote_is_introduced() -> None:
    assert without_quotes("Yes.\nOn Monday, Bot <b@x> wrote:\nno?", is_html=True) == "Yes."


def test_the_key_of_a_part_is_in_the_id_of_its_mail() -> None:
    key = "01a1ebbf-7156-7d62-a5db-304392b34893:3"
    assert outgoing.key_of(outgoing.message_id(key, "bot@example.org")) == key
