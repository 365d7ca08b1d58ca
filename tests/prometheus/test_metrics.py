"""Figures for Prometheus: the log's counts from all workers, and one worker's own."""

import json
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

import taskq_plugins.prometheus
from taskq import Shards, TaskQ, retry
from taskq_plugins.prometheus import command
from taskq_plugins.prometheus.serving import registry_of, text_of, worker_metrics
from taskq_plugins.scrapes import serve
from taskq_workers import JobFinished
from tests.cli.helpers import taskq
from tests.processes.harness import SCRIPTS, Child, eventually, start_worker
from tests.processes.test_kill_matrix import enqueue, view
from tests.programs import free_port

#: A sample: its name, and its labels in order.
Key = tuple[str, ...]


def samples(text: str) -> Mapping[Key, float]:
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(address: str) -> Mapping[Key, float]:
    with urllib.request.urlopen(address) as answer:  # noqa: S310 - our own, on this machine
        return samples(answer.read().decode())


def test_counters_match_the_log_over_three_processes_with_one_killed(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    job = enqueue(tmp_path, "jobs.waits_for", str(ends))
    with start_worker(tmp_path) as killed:
        killed.expect("waiting")
        running = samples(text_of(str(tmp_path)))
        killed.kill()
    ends.touch()
    app = TaskQ(tmp_path, durability="os")
    app.enqueue_many_sync([app.call_by_name("jobs.quick", 1)] * 40)
    with start_worker(tmp_path) as first, start_worker(tmp_path) as other:
        first.expect("  ready")
        other.expect("  ready")
        eventually(lambda: app.stats_sync().queues[0].succeeded == 41)
        both = samples(text_of(str(tmp_path)))
    app.close_sync()
    answer = view(tmp_path, job)
    assert [attempt.outcome for attempt in answer.attempts] == ["lost", "succeeded"]
    assert running["taskq_jobs", "default", "running"] == 1
    assert (running["taskq_workers",], both["taskq_workers",]) == (1, 2)
    assert both["taskq_worker_slots",] == 16
    assert both["taskq_jobs_ended_total", "succeeded", "default"] == 41
    assert both["taskq_jobs_of_dead_processes",] == 0
    for state in ("scheduled", "ready", "running", "dead"):
        assert both["taskq_jobs", "default", state] == 0


async def test_worker_metrics_cover_attempts_the_log_and_the_engine(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(name="work", retry=retry.fixed(2, 0))
    async def work(number: int) -> None:
        if number == 3:
            raise ValueError

    ended: list[JobFinished] = []
    async with app:
        with worker_metrics(app, 0) as (address, count):

            def note(event: JobFinished) -> None:
                ended.append(event)
                count(event)

            await work.enqueue_many([(number,) for number in range(5)])
            await app.worker(on_event=note, burst=True).run()
            answer = scraped(address)
    for outcome in ("succeeded", "retried", "dead"):
        seconds = [end.seconds for end in ended if end.outcome == outcome]
        assert answer["taskq_attempt_seconds_count", outcome, "default", "work"] == len(seconds)
        assert answer["taskq_attempt_seconds_sum", outcome, "default", "work"] == pytest.approx(
            sum(seconds)
        )
    assert answer["taskq_jobs_ended_total", "succeeded", "default"] == 4
    assert answer["taskq_jobs", "default", "dead"] == 1
    assert answer["taskq_engine_batches_total",] == answer["taskq_engine_batch_records_count",] > 0


def test_each_of_several_logs_has_its_label_in_one_family(tmp_path: Path) -> None:
    app = TaskQ(shards=Shards(tmp_path / "root", bits=1), durability="os")

    @app.task(name="work", key=lambda number: number)
    async def work(number: str) -> None: ...

    calls = [work.call(f"{number}") for number in range(9)]
    app.enqueue_many_sync(calls, atomic=False)
    ready = [log.stats_sync().queues[0].ready for log in app.logs()]
    assert sum(ready) == 9
    with worker_metrics(app, 0) as (address, _):
        answer = scraped(address)
    text = text_of(str(tmp_path / "root"))
    paths = [str(log.data_dir) for log in app.logs()]
    with worker_metrics(app, 0, paths) as (address, _):
        by_path = scraped(address)
    for number, name in enumerate(("1.000", "1.001")):
        assert answer["taskq_jobs", name, "default", "ready"] == ready[number]
        assert by_path["taskq_jobs", paths[number], "default", "ready"] == ready[number]
        line = f'taskq_jobs{{log="{name}",queue="default",state="ready"}} {float(ready[number])}'
        assert line in text
    assert text.count("# TYPE taskq_jobs gauge") == 1
    app.close_sync()


def test_workers_of_one_guard_answer_at_ports_of_their_own(tmp_path: Path) -> None:
    port = free_port(2)
    command = [sys.executable, "-m", "taskq", "worker", "jobs:app", "-d", tmp_path]
    with Child(*command, "--processes", 2, "--metrics-port", port, cwd=SCRIPTS) as guard:
        places = sorted(guard.expect("metrics at") for _ in range(2))
        assert places == [f"http://127.0.0.1:{item}/metrics" for item in (port, port + 1)]
        for place in places:
            assert scraped(place)["taskq_log_readable",] == 1
        guard.send(signal.SIGTERM)
        assert guard.wait() == 0


def test_each_scrape_reads_the_log_again_and_reports_a_removed_log(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")
    app.open_sync()
    with serve(registry_of(str(app.data_dir)), "127.0.0.1", 0) as address:
        for count in (1, 2):  # each scrape has what was written since the last
            app.enqueue_sync(app.call_by_name("anything"))
            assert scraped(address)["taskq_jobs", "default", "ready"] == count
        app.close_sync()
        app.data_dir.rename(tmp_path / "elsewhere")
        assert scraped(address) == {("taskq_log_readable",): 0}
        (tmp_path / "elsewhere").rename(app.data_dir)
        assert scraped(address)["taskq_log_readable",] == 1


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", ""]
)
def test_another_name_for_this_machine_is_refused(tmp_path: Path, host: str) -> None:
    """By such a name a page of somebody else could read the figures: DNS rebinding."""
    with serve(registry_of(str(tmp_path)), "127.0.0.1", 0) as address:
        port = address.rpartition(":")[2].partition("/")[0]
        asked = urllib.request.Request(address, headers={"Host": host.format(port=port)})  # noqa: S310 - our own
        with pytest.raises(urllib.error.HTTPError, match="421") as refused:
            urllib.request.urlopen(asked)  # noqa: S310 - as above
        refused.value.close()
        assert scraped(address.replace("127.0.0.1", "localhost"))


def test_a_port_alone_is_of_this_machine_and_is_named_when_it_is_taken(tmp_path: Path) -> None:
    TaskQ(tmp_path).store().close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = taskq("metrics", "-d", tmp_path, "--serve", port)
    assert result.exit_code == 1
    assert f"cannot listen at 127.0.0.1:{port}: Address already" in result.stderr


def test_the_command_serves_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TaskQ(tmp_path).store().close()
    address = f"127.0.0.1:{free_port()}"

    def interrupted() -> None:
        assert scraped(f"http://{address}/metrics")["taskq_log_readable",] == 1
        raise KeyboardInterrupt

    forever = Mock(side_effect=interrupted)
    monkeypatch.setattr(command, "threading", Mock(**{"Event.return_value.wait": forever}))
    assert taskq("metrics", "-d", tmp_path / "none", "--serve", address).exit_code == 1
    forever.assert_not_called()
    result = taskq("metrics", "-d", tmp_path, "--serve", address)
    assert (result.exit_code, result.stdout) == (0, f"metrics at http://{address}/metrics\n")
    forever.assert_called_once()


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_rules_and_dashboard_use_exported_metrics_only(tmp_path: Path, name: str) -> None:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(name="send")
    def send() -> None:
        """Well done."""

    send.enqueue_sync()
    with worker_metrics(app, 0) as (address, count):
        app.run_worker(burst=True, on_event=count)
        answer = scraped(address)
    app.close_sync()
    text = Path(taskq_plugins.prometheus.__file__).with_name(name).read_text("utf-8")
    if name == "alerts.yml":
        asked = re.findall(r"expr: (.*)", text)
    else:
        panels = json.loads(text)["panels"]
        asked = [target["expr"] for panel in panels for target in panel["targets"]]
    names = set(re.findall(r"\btaskq_\w+", "\n".join(asked)))
    assert names
    # The look comes after enough written bytes to matter.
    assert names <= {key[0] for key in answer} | {"taskq_disk_free_bytes"}
    values = {value for key in answer for value in key[1:]}
    wanted = set(re.findall(r'(?:state|outcome|quantile)="([^"]+)"', "\n".join(asked)))
    assert wanted
    assert wanted <= values | {"dead", "running"}
