"""The examples for sync web frameworks, run by the frameworks themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from taskq.engine import LogReader
from tests.programs import run_forked

ROOT = Path(__file__).parents[2]
DJANGO = ROOT / "examples" / "django_app"

#: Requests as lines of (method, path, data), answers as lines of JSON, through the frameworks' own
#: test clients.
DJANGO_REQUESTS = """
import json, sys
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("migrate", run_syncdb=True, verbosity=0)
for method, path, data in json.loads(sys.argv[1]):
    answer = getattr(Client(), method)(path, data or {})
    print(json.dumps([answer.status_code, answer.json()]))
"""
FLASK_REQUESTS = """
import json, sys
from examples.flask_app.web import web
for method, path, data in json.loads(sys.argv[1]):
    answer = getattr(web.test_client(), method)(path, data=data)
    print(json.dumps([answer.status_code, answer.get_json(silent=True)]))
"""


def run(folder: Path, environment: dict[str, str], *command: object) -> str:
    done = run_forked(*command, cwd=folder, env={**os.environ, **environment})
    assert not done.returncode, done.stderr
    return done.stdout


def answers(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_django_enqueues_once_an_order_is_committed_and_its_command_runs_the_jobs(
    tmp_path: Path,
) -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "shop.settings", "SHOP_DIR": str(tmp_path)}

    def ask(*requests: tuple[str, str, dict[str, str] | None]) -> list[Any]:
        return answers(run(DJANGO, environment, "-c", DJANGO_REQUESTS, json.dumps(requests)))

    sold, refused = ask(
        ("post", "/buy", {"email": "ann@example.com", "item": "kettle"}),
        ("post", "/buy", {"email": "ann@example.com", "item": "unicorn"}),
    )
    assert (sold[0], sold[1]["order"]) == (201, 1)
    assert refused == [409, {"error": "unicorn: sold out"}]
    job = f"/jobs/{sold[1]['job']}"
    run(DJANGO, environment, "manage.py", "worker", "--burst")
    shown, unknown = ask(("get", job, None), ("get", "/jobs/nothing", None))
    result = "sent the receipt for kettle for ann@example.com"
    assert shown == [200, {"state": "succeeded", "result": result, "reason": ""}]
    assert unknown[0] == 404
    # An order that was rolled back left no job.
    with LogReader.open(str(tmp_path / "jobs")) as reader:
        (queue,) = reader.stats().queues
    assert (queue.queue, queue.succeeded, queue.ready) == ("mail", 1, 0)


def test_flask_enqueues_in_a_route_and_its_command_runs_the_jobs(tmp_path: Path) -> None:
    environment = {"WORDS_DIR": str(tmp_path / "jobs"), "PYTHONPATH": str(ROOT)}

    def ask(*requests: tuple[str, str, str | None]) -> list[Any]:
        return answers(run(tmp_path, environment, "-c", FLASK_REQUESTS, json.dumps(requests)))

    good, bad = ask(("post", "/count", "to be or not to be or"), ("post", "/count", " "))
    assert [status for status, _ in (good, bad)] == [202, 202]
    flask = ("-m", "flask", "--app", "examples.flask_app.web")
    run(tmp_path, environment, *flask, "worker", "--burst")
    counted, waits, unknown = ask(
        ("get", f"/jobs/{good[1]['job']}", None),
        ("get", f"/jobs/{bad[1]['job']}", None),
        ("get", "/jobs/nothing", None),
    )
    result = {"to": 2, "be": 2, "or": 2}
    assert counted == [200, {"state": "succeeded", "result": result, "reason": ""}]
    assert waits[1]["state"] in {"scheduled", "ready"}
    assert waits[1]["reason"] == "ValueError: there are no words in this text"
    assert unknown[0] == 404
