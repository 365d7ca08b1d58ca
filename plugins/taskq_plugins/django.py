"""Django: enqueue jobs when a transaction commits, and list jobs in the admin.

::

    from taskq_plugins.django import enqueue_on_commit

    with transaction.atomic():
        order = Order.objects.create(...)
        enqueue_on_commit(send_receipt.call(order.pk))  # never for an order that is rolled back
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from taskq import Call, State, TaskQ, engine, errors, views

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest, HttpResponse

    from taskq import JobHandle

#: The list shows at most this number of jobs, newest first.
_JOBS_MAX: Final = 200
_PAGE: Final = """{% extends "admin/base_site.html" %}{% block content %}<div class="module">
<p><a href="?">all</a>
{% for name in states %} | <a href="?state={{ name }}">{{ name }}</a>{% endfor %}</p>
<table><thead><tr><th>job</th><th>state</th><th>task</th><th>queue</th><th>attempt</th>
<th>enqueued</th><th>reason</th></tr></thead><tbody>
{% for job, enqueued, reason in jobs %}<tr><td>{{ job.job_id }}</td><td>{{ job.state }}</td>
<td>{{ job.task }}</td><td>{{ job.queue }}</td><td>{{ job.attempt }}</td><td>{{ enqueued }}</td>
<td>{{ reason }}</td></tr>{% empty %}<tr><td colspan="7">No job.</td></tr>{% endfor %}
</tbody></table></div>{% endblock %}"""


def enqueue_on_commit(
    call: Call[Any],
    *,
    using: str | None = None,
    then: Callable[[JobHandle[Any]], object] | None = None,
) -> None:
    """Enqueue a call when the current transaction commits; at once without a transaction.

    The arguments are checked now. A kill between the commit and the enqueue loses the job. If the
    loss matters, let a schedule look for rows without a job.

    Args:
        call: such as ``send_receipt.call(order.pk)``.
        using: alias of the database.
        then: function that gets the job's handle.

    Raises:
        UsageError: ``call`` is not a call of a task of this program.
    """
    from django.db import transaction  # noqa: PLC0415 - needs Django's settings

    task = getattr(call, "task", None)
    if type(call) is not Call or task is None:
        raise errors.UsageError(f"enqueue_on_commit takes a call of a task, got {call!r:.60}")
    app: Any = task.app

    def enqueue() -> None:
        job = app.enqueue_sync(call)
        if then is not None:
            then(job)

    transaction.on_commit(enqueue, using=using)


def add_to_admin(app: TaskQ, site: AdminSite | None = None) -> None:
    """Show the app's newest jobs to staff, read-only, at ``taskq/`` below the admin's address.

    Call it in ``urls.py``, before ``admin.site.urls`` is used.
    """
    from django.contrib import admin  # noqa: PLC0415 - as above
    from django.urls import path  # noqa: PLC0415 - as above

    chosen = site or admin.site
    before = chosen.get_urls

    def show(request: HttpRequest) -> HttpResponse:
        return _page(app, chosen, request)

    def urls() -> list[Any]:
        return [path("taskq/", chosen.admin_view(show), name="taskq"), *before()]

    chosen.get_urls = urls


def _page(app: TaskQ, site: AdminSite, request: HttpRequest) -> HttpResponse:
    from django.http import HttpResponse  # noqa: PLC0415 - as above
    from django.template import engines  # noqa: PLC0415 - as above

    state: State | None = views.STATES.get(request.GET.get("state", ""))
    jobs: list[views.JobView] = []
    for log in app.logs():
        if (log.data_dir / "taskq.json").exists():  # made at first use
            with engine.LogReader.open(str(log.data_dir)) as reader:
                jobs += reader.jobs({state} if state else None, None, None, _JOBS_MAX)
    jobs.sort(key=lambda job: -job.enqueued_ns)
    rows = [
        (job, views.moment(job.enqueued_ns), job.reason.partition("\n")[0])
        for job in jobs[:_JOBS_MAX]
    ]
    shown = {**site.each_context(request), "title": "Jobs", "jobs": rows, "states": views.STATES}
    return HttpResponse(engines["django"].from_string(_PAGE).render(shown, request))
