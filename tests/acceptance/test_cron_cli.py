"""`hobnob cron` as people use it: add a job, see its next time, run it, read the answer."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import run_command
from tests.acceptance.test_serving import GatewayHome, Start
from tests.acceptance.test_serving import gateway_home as gateway_home
from tests.acceptance.test_serving import start as start


def run(home: GatewayHome, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_command(("cron", *words), home.env)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def as_json(home: GatewayHome, *words: str) -> Any:
    return json.loads(run(home, *words, "--json").stdout)


@pytest.mark.promise("jobs.zone_and_next_time")
def test_a_job_is_added_listed_changed_and_removed_without_a_gateway(gateway_home: GatewayHome) -> None:
    added = run(gateway_home, "add", "0 8 * * 1-5", "Summarise the night.", "--tz", "Europe/Vienna")
    assert "at 08:00 on Monday through Friday" in added.stdout and "08:00:00 +0" in added.stdout
    assert "hobnob serve" in added.stderr
    (job,) = as_json(gateway_home, "list")["jobs"]
    assert (job["timeZone"], job["payload"]["message"]) == ("Europe/Vienna", "Summarise the night.")
    changed = as_json(gateway_home, "edit", "Summarise", "--every", "2h", "--no-deliver")
    assert (changed["schedule"]["everyMs"], changed["delivery"]["mode"]) == (7_200_000, "none")
    assert not as_json(gateway_home, "disable", job["id"][:13])["enabled"]
    assert as_json(gateway_home, "list")["jobs"] == []
    assert "off" in run(gateway_home, "list", "--all").stdout
    assert as_json(gateway_home, "enable", job["id"])["nextRunAtMs"]
    run(gateway_home, "rm", job["id"])
    assert as_json(gateway_home, "status")["jobs"] == 0


@pytest.mark.promise("jobs.bad_schedules_are_explained")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("61 * * * *", "x"), "the minute is '61'"),
        (("--at", "2020-01-01", "-m", "x"), "is in the past; it is 20"),
        (("--cron", "0 8 * * *", "--tz", "Mars/Base", "-m", "x"), "no time zone 'Mars/Base'"),
        (("--every", "often", "-m", "x"), "'often' is not an interval"),
        (("--every", "5m"), "needs a task"),
        (("-m", "x"), "needs a time"),
        (("--every", "5m", "--cron", "0 8 * * *", "-m", "x"), "one of --at, --every and --cron"),
        (("--every", "5m", "-m", "x", "--channel", "pigeon", "--to", "5"), "'pigeon' is not connected"),
    ],
)
def test_what_is_wrong_with_a_new_job_is_said_in_a_sentence(
    gateway_home: GatewayHome, words: tuple[str, ...], said: str
) -> None:
    assert said in run(gateway_home, "add", *words, code=2).stderr


def test_a_job_runs_at_its_time_and_on_demand_in_the_gateway(
    gateway_home: GatewayHome, start: Start, tmp_path: Path
) -> None:
    start()
    job = as_json(gateway_home, "add", "--every", "1h", "-m", "What is up?", "--name", "Talk")
    done = as_json(gateway_home, "run", "Talk", "--wait")
    assert (done["run"]["status"], done["run"]["trigger"]) == ("ok", "manual")
    assert "What is up?" in done["run"]["summary"]
    (entry,) = as_json(gateway_home, "runs", job["id"])["entries"]
    assert entry["runId"] == done["runId"]
    shown = run(gateway_home, "show", "Talk").stdout
    assert "every 1 h" in shown and "Latest runs" in shown


@pytest.mark.promise("jobs.answers_are_delivered")
def test_the_morning_summary_of_the_documents_reads_the_night_and_is_posted(
    gateway_home: GatewayHome, start: Start
) -> None:
    assert (
        run_command(("config", "set", "tools.sessions.visibility", "agent"), gateway_home.env).returncode == 0
    )
    start()
    night = ("agent", "-m", "say A customer wrote at two: the shop is down.")
    assert run_command(night, gateway_home.env).returncode == 0
    # The rehearsal model takes this text for a call of sessions_history; others decide for themselves.
    words = ("0 8 * * 1-5", "history of main", "--name", "Morning", "--tz", "Europe/Vienna")
    added = run(gateway_home, "add", *words).stdout
    assert "at 08:00 on Monday through Friday" in added and "the sessions of its agent" in added
    done = as_json(gateway_home, "run", "Morning", "--wait")
    assert done["run"]["status"] == "ok" and "the shop is down" in done["run"]["summary"]
    shown = run_command(("sessions", "show", "main"), gateway_home.env).stdout
    assert shown.index("(cron)") < shown.rindex("the shop is down")  # what the job posted


def test_a_job_that_sees_no_chats_says_so_when_it_is_added(gateway_home: GatewayHome) -> None:
    added = run(gateway_home, "add", "0 8 * * 1-5", "Summarise the night.").stdout
    assert "only its own session (tools.sessions.visibility is tree)" in added
