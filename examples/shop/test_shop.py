# test_shop.py
from pathlib import Path

import pytest
from shop import app, order

from taskq.errors import JobFailed
from taskq.testing import Sandbox


def test_a_broken_van_delays_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("van-is-broken").touch()
    with Sandbox(app) as box:
        job = order.enqueue_sync("no. 8", ["tea", "coffee"])
        box.drain_sync()
        box.advance("3d")
        box.signal_sync(job, "address", "Kyoto")
        box.drain_sync()
        Path("van-is-broken").unlink()
        box.drain_sync(with_scheduled=True)
        assert job.result_sync() == "a box of tea and a box of coffee to Kyoto"


def test_no_address_is_a_refund(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Sandbox(app) as box:
        job = order.enqueue_sync("no. 9", ["tea"])
        box.drain_sync(with_scheduled=True, raises=False)
        with pytest.raises(JobFailed):
            job.result_sync()
        assert Path("bank.txt").read_text().endswith("no. 9 refunded\n")
