"""Count words by jobs: ``flask --app examples.flask_app.web run``, and ``… worker`` in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from flask import Flask, abort, jsonify, request

from taskq import State
from taskq.errors import JobNotFound, UsageError

from .tasks import count_words, jobs

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

web = Flask(__name__)


@web.post("/count")
def count() -> ResponseReturnValue:
    """Enqueue a text; the job is on disk when this answers."""
    job = count_words.enqueue_sync(request.get_data(as_text=True))
    return jsonify(job=job.id), 202


@web.get("/jobs/<job_id>")
def show(job_id: str) -> ResponseReturnValue:
    """Return a job's state with its result or the reason of its failure."""
    try:
        job = jobs.job(job_id)
        view = job.view_sync()
    except (JobNotFound, UsageError) as error:
        abort(404, str(error))
    result = job.result_sync(timeout=0) if view.state is State.SUCCEEDED else None
    reason = view.reason.partition("\n")[0]
    return jsonify(state=view.state.name.lower(), result=result, reason=reason)


@web.cli.command("worker")
@click.option("--concurrency", default=4, show_default=True, help="Jobs at a time.")
@click.option("--burst", is_flag=True, help="Stop when no job is ready.")
def worker(*, concurrency: int, burst: bool) -> None:
    """Run background jobs until Ctrl-C or SIGTERM."""
    jobs.run_worker(concurrency=concurrency, burst=burst)
