"""Talking to an agent on the page: it streams, stops, survives a restart."""

from collections.abc import Callable

from tests.browser.house import House, Visit
from tests.integration.team import team

Make = Callable[..., House]
Enter = Callable[..., Visit]


def test_what_one_writes_is_answered_and_both_stand_in_the_list(house: Make, visit: Enter) -> None:
    one = visit(house(team()))
    one.tab.get_by_role("button", name="Write to ann").click()
    one.write("what is 6 * 7?")
    one.see("6 * 7 = 42", ".conversation .messages")
    one.see("6 * 7 = 42", ".row")
    assert one.tab.locator(".message.pending").count() == 0
    used = one.tab.locator(".message.agent .used").first.inner_text()
    assert " in · " in used and " out · " in used
