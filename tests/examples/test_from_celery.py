"""The Celery app and its port do the same work, and end with the same world."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from examples.from_celery.world import Order, world
from taskq import State
from taskq.testing import Sandbox

_ORDER = Order(customer="ann", email="ann@example.com", articles=("tea", "coffee"))
_CHARGES = [("ann", 900)]
_MAILS = [("ann@example.com", "paid: ann 900")]
_LIMIT_SECONDS = 40


@pytest.fixture(autouse=True)
def _new_world() -> Iterator[None]:
    world.clear()
    yield
    world.clear()


def _no_logging(**_: object) -> None: ...


async def test_the_port_retries_adds_up_charges_and_mails() -> None:
    """Two prices and the charge fail once each: their retries are waited for in fake time."""
    from examples.from_celery import taskq_app  # noqa: PLC0415 - both apps name the same tasks

    async with Sandbox(taskq_app.app) as box:
        handle = await asyncio.to_thread(taskq_app.buy, _ORDER)
        report = await box.drain(with_scheduled=True, raises=False)
        assert report.outcomes == {"retried": 3, "succeeded": 5}
        assert (await handle.progress()).succeeded == 5
    assert (world.charges, world.mails) == (_CHARGES, _MAILS)


async def test_the_port_reminds_once_a_day() -> None:
    from examples.from_celery import taskq_app  # noqa: PLC0415

    async with Sandbox(taskq_app.app) as box:
        for _ in range(2):
            await asyncio.to_thread(taskq_app.remind, "ann", "ann@example.com")
        (job,) = box.enqueued(taskq_app.mail)
        assert job.view.state is State.SCHEDULED
        box.advance("1h")
        await box.drain()
    assert world.mails == [("ann@example.com", "paid: your basket waits")]


def test_the_port_has_a_function_of_the_same_kind_for_each_of_the_original() -> None:
    pytest.importorskip("celery", reason="Celery is not installed: pip install celery")
    from examples.from_celery import celery_app, taskq_app  # noqa: PLC0415

    names = ["price", "charge", "mail", "total", "report", "check_stock", "buy", "remind"]
    for name in names:
        kinds = {
            inspect.iscoroutinefunction(inspect.unwrap(getattr(app, name)))
            for app in (celery_app, taskq_app)
        }
        assert kinds == {False}, name


@pytest.mark.slow  # of what is ours here the port's tests say more
def test_the_original_does_the_same() -> None:
    pytest.importorskip("celery", reason="Celery is not installed: pip install celery")
    from celery import signals  # noqa: PLC0415
    from celery.contrib.testing.worker import start_worker  # noqa: PLC0415

    from examples.from_celery import celery_app  # noqa: PLC0415

    # Who listens here has Celery leave the logging of this process alone.
    signals.setup_logging.connect(_no_logging, weak=False)
    celery_app.app.conf.result_chord_retry_interval = 0.1
    celery_app.app.conf.broker_transport_options = {"polling_interval": 0.05}
    options = {"perform_ping_check": False, "pool": "solo", "loglevel": "ERROR"}
    with start_worker(celery_app.app, queues=["default", "mail"], **options):
        celery_app.buy(_ORDER)
        assert world.mailed.wait(_LIMIT_SECONDS)
    assert (world.charges, world.mails) == (_CHARGES, _MAILS)
