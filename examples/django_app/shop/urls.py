"""Addresses of the two views."""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [path("buy", views.buy), path("jobs/<str:job_id>", views.show)]
