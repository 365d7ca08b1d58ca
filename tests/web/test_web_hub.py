"""A hub's page shows the state of its devices, and links to the pages of their logs."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import httpx

from taskq.engine import Identity, LogReader
from taskq_plugins.hub.registry import Registry
from taskq_plugins.web.door import ENTRY, AccessKeys, SiteAddress
from taskq_plugins.web.mount import make_hub
from tests.hub.place import DEVICE
from tests.hub.place import Place as HubPlace
from tests.web.browser import HOST, ORIGIN, running


async def test_devices_are_told_with_lag_holds_and_last_word(tmp_path: Path) -> None:
    place = HubPlace(tmp_path)
    await place.write(3)
    await place.sync()
    registry = Registry(place.hub)
    registry.enroll("edge-8")
    registry.leave("edge-8", UUID(int=1))
    assert registry.holds("edge-8", UUID(int=1))
    registry.note_end("edge-8", Identity(UUID(int=2), 0), (40, 90, 0), clock_ns=-5 * 10**9)
    keys = AccessKeys("s" * 43)
    hub = make_hub(
        str(place.hub),
        SiteAddress(scheme="http", hosts=(HOST,), allow_actions=True),
        keys,
        registry.all_standing,
    )
    transport = httpx.ASGITransport(app=hub)
    async with running(hub), httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        assert (await client.get("/")).status_code == 401
        await client.get(ENTRY, params={"token": keys.entry()})
        page = (await client.get("/")).text
        assert "2 devices, 1 held: 50 records are still to come" in page
        rows = dict(re.findall(r'row">([\w-]+)</th>(.*?)</tr>', page, re.DOTALL))
        assert set(rows) == {DEVICE, "edge-8"}
        assert ">held</span>" in rows["edge-8"]
        assert "-5.0s" in rows["edge-8"]
        assert ">active</span>" in rows[DEVICE]
        link = re.search(rf'href="(/logs/{DEVICE}/[^"]+)"', rows[DEVICE])
        assert link is not None
        for path in ("", "jobs", "tasks", "workers", "log"):
            answer = await client.get(link[1] + path)
            assert answer.status_code == 200, answer.text
            assert f'href="{link[1]}jobs"' in answer.text
            assert 'method="post"' not in answer.text
            assert '<a href="/">All devices</a>' in answer.text
            assert "taskq worker" not in answer.text
        with LogReader.open(str(place.copy)) as reader:
            job = reader.jobs(None, None, None, 1)[0].job_id
        assert 'action="/find"' in page
        shown = await client.get("/find", params={"q": job}, follow_redirects=True)
        assert (shown.status_code, f"jobs/{job}" in str(shown.url)) == (200, True)
        assert (await client.get(f"{link[1]}api/jobs/{job}")).status_code == 200
        for lost in ("", "00000000-1", f"{job}9", "../x"):
            assert (await client.get("/find", params={"q": lost})).status_code == 404
        for path in (f"/logs/{DEVICE}/x/", "/logs/..%2f../x/", "/logs/edge-9/x/"):
            assert (await client.get(path)).status_code == 404
