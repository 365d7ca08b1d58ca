"""``python manage.py worker``: runs the shop's jobs until Ctrl-C or SIGTERM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

from shop.tasks import app

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Runs jobs until the first signal, then drains."""

    help = "Runs background jobs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--concurrency", type=int, default=4)
        parser.add_argument("--burst", action="store_true", help="stop when no job is ready")

    def handle(self, *_args: Any, **options: Any) -> None:
        self.stdout.write(f"running jobs of {app.data_dir}")
        app.run_worker(concurrency=options["concurrency"], burst=options["burst"])
