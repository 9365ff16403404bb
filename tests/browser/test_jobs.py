"""The view for scheduled jobs: add, run now, edit, switch off, remove."""

import pytest
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab


@pytest.mark.promise("page.jobs")
def test_a_job_is_added_run_edited_and_removed(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway({}), "#/jobs")
    page = tab.page
    tab.wait_for_text("No jobs yet.")
    page.get_by_role("button", name="New job").click()
    page.locator("[name=task]").fill("Summarise what came in overnight.")
    page.locator("[name=when]").fill("0 8 * * 1-5")
    page.locator("[name=zone]").fill("Europe/Vienna")
    page.get_by_role("button", name="Add", exact=True).click()
    job = page.locator(".job")
    job.get_by_text("at 08:00 on Monday through Friday").wait_for()
    assert "08:00:00 +0" in job.inner_text() and "(Europe/Vienna)" in job.inner_text()
    job.get_by_role("button", name="Run now").click()
    page.locator(".run-list").get_by_role("img", name="ok").wait_for()
    tab.wait_for_text("Summarise what came in overnight.", ".run-list")
    job.get_by_role("button", name="Edit").click()
    page.locator("[name=when]").fill("30m")
    page.get_by_role("button", name="Save").click()
    job.get_by_text("every 30 m").wait_for()
    job.get_by_role("button", name="Switch off").click()
    job.get_by_role("button", name="Switch on").wait_for()
    job.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    tab.wait_for_text("No jobs yet.")


@pytest.mark.promise("page.jobs")
def test_a_wrong_expression_is_explained_in_the_dialog(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway({}), "#/jobs")
    tab.page.get_by_role("button", name="New job").click()
    tab.page.locator("[name=task]").fill("x")
    tab.page.locator("[name=when]").fill("61 * * * *")
    tab.page.get_by_role("button", name="Add", exact=True).click()
    tab.wait_for_text("the minute is '61'", "dialog .error")
