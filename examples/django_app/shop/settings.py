"""Minimal settings: one application, one database, and the directory of the jobs."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(os.environ.get("SHOP_DIR", Path(__file__).resolve().parent.parent))
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "for this example alone")
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

#: The directory of the jobs: on a local disk, shared by all processes of the site on this machine.
TASKQ_DATA_DIR = BASE_DIR / "jobs"
