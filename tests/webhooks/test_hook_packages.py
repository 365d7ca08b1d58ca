"""Sentry and Django: packages of hooks."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskq import Discard, Retry, TaskQ, retry
from taskq.errors import UsageError
from taskq_plugins.sentry import report_to_sentry
from taskq_plugins.webhooks import Webhooks
from tests.programs import run_python


def sentry_events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    sdk = pytest.importorskip("sentry_sdk")
    events: list[dict[str, Any]] = []

    class Transport(sdk.Transport):  # type: ignore[misc, name-defined]
        def capture_envelope(self, envelope: Any) -> None:
            event = envelope.get_event()
            if event is not None:
                events.append(event)

    client = sdk.Client(dsn="https://k@sentry.invalid/1", transport=Transport,
                        default_integrations=False)  # fmt: skip
    scope = sdk.get_global_scope()
    before = scope.client
    scope.set_client(client)
    monkeypatch.callback = lambda: scope.set_client(before)  # type: ignore[attr-defined]
    return events


@pytest.mark.parametrize(("package", "use"), [
    ("sentry-sdk", report_to_sentry),
    ("httpx", lambda app: Webhooks(app, "https://a.invalid", f"whsec_{'M' * 32}")),
])  # fmt: skip
async def test_a_worker_does_not_start_without_a_package_that_each_job_needs(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, package: str, use: Callable[[TaskQ], object]
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    use(app)
    with pytest.raises(UsageError, match=f"pip install {package}"):
        await app.worker(burst=True).run()


@pytest.mark.parametrize("retries", [True, False])
async def test_each_failed_attempt_is_an_event_with_its_job(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, retries: bool
) -> None:
    events = sentry_events(monkeypatch)
    report_to_sentry(app, retries=retries)

    @app.task(name="mail.send", queue="mail", retry=1)
    async def send(to: str) -> None:
        if to == "wish":
            raise Discard("not wanted")
        if to == "later":
            raise Retry(3_600)
        if to != "good":
            raise ValueError("no such address")

    @app.task(retry=retry.fixed(5, "1h"))
    async def again() -> None:
        raise ValueError("once more")

    @app.task(retry=retry.exponential(attempts=5, give_up_on=(KeyError,)))
    async def hopeless() -> None:
        raise KeyError("gone")

    jobs = await send.enqueue_many([("secret",), ("good",), ("wish",), ("later",)])
    await again.enqueue()
    await hopeless.enqueue()
    await app.worker(burst=True).run()
    monkeypatch.callback()  # type: ignore[attr-defined]
    reported = {event["exception"]["values"][-1]["value"]: event for event in events}
    assert reported.keys() == {"no such address", "'gone'", *(["once more"] * retries)}
    assert len(events) == len(reported)
    event = reported["no such address"]
    assert event["tags"] == {"taskq.task": "mail.send", "taskq.queue": "mail"}
    context = {"job_id": jobs[0].id, "attempt": 1, "attempts_max": 1}
    assert context.items() <= event["contexts"]["taskq"].items()


DJANGO = """
    import sys, django
    from django.conf import settings
    settings.configure(
        SECRET_KEY="x", ROOT_URLCONF="__main__", USE_TZ=True, ALLOWED_HOSTS=["testserver"],
        INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth",
            "django.contrib.contenttypes", "django.contrib.messages", "django.contrib.sessions"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}},
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware"],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
            "OPTIONS": {"context_processors": ["django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages"]}}],
        STATIC_URL="/static/",
    )
    django.setup()
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import transaction
    from django.test import Client
    from django.urls import path
    from taskq import TaskQ, errors
    from taskq_plugins.django import add_to_admin, enqueue_on_commit

    app = TaskQ("jobs")

    @app.task(name="shop.send")
    def send(text: str) -> None: ...

    add_to_admin(app)
    urlpatterns = [path("admin/", admin.site.urls)]
    call_command("migrate", verbosity=0)
    jobs = []
    with transaction.atomic():
        enqueue_on_commit(send.call("<b>"), then=jobs.append)
        assert not jobs
    for wrong in (app.call_by_name("unknown"), send):
        try:
            enqueue_on_commit(wrong)
        except errors.UsageError as error:
            assert "takes a call of a task" in str(error)
        else:
            raise AssertionError(wrong)
    User.objects.create_superuser("ana", password="x")
    client = Client()
    assert client.get("/admin/taskq/").status_code == 302, "a stranger logs in first"
    client.login(username="ana", password="x")
    page = client.get("/admin/taskq/").content.decode()
    assert page.count("<td>shop.send</td>") == 1, page
    assert jobs[0].id in page
    assert "shop.send" not in client.get("/admin/taskq/?state=dead").content.decode()
    assert client.get("/admin/").status_code == 200
    app.close_sync()
"""


def test_django_enqueues_after_the_commit_and_its_admin_lists_jobs(tmp_path: Path) -> None:
    pytest.importorskip("django")
    done = run_python("-c", textwrap.dedent(DJANGO), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
