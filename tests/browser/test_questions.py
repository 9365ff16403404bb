"""A command that waits for a yes, on the page."""

from collections.abc import Callable

import pytest
from tests.browser.house import House, Visit
from tests.integration.sandboxed import needs_sandbox

from hobnob.gateway import Gateway
from hobnob.requests import HistoryQuery
from hobnob.testing import OWNER, calls, script

pytestmark = needs_sandbox
Make = Callable[..., House]
Enter = Callable[..., Visit]


@pytest.mark.parametrize(("button", "said"), [("Allow once", '"status":"ok"'), ("Deny", "exec.denied")])
def test_a_command_that_waits_is_answered_on_the_page(
    house: Make, visit: Enter, button: str, said: str
) -> None:
    asking = {"tools": {"exec": {"ask": "always"}}}
    gateway = house(asking | script(calls("exec", command="echo '<b>hello</b>'"), "Done."))
    one = visit(gateway)

    async def begin(inside: Gateway) -> str:
        return (await inside.sessions.send(OWNER, "main", "say hello")).turn_id

    run = gateway.do(begin)
    card = one.tab.locator(".permit")
    card.get_by_text("echo '<b>hello</b>'").wait_for()  # as it is, and not as markup
    assert "in the sandbox" in card.inner_text()
    card.get_by_role("button", name=button).click()
    card.wait_for(state="detached")

    async def result(inside: Gateway) -> str:
        await inside.sessions.wait(run, 15)
        page = await inside.sessions.queries.history(OWNER, "main", HistoryQuery(include_tools=True))
        return str(page["messages"])

    assert said in gateway.do(result)
