"""Ask a question, and kill the worker during the model's third answer."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.agent.app import app, ask
from examples.agent.model import Model

#: Number of the model's answer during which the worker is killed.
KILLED_AT = 3


def start_worker(path: Path, model: Model) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "taskq", "worker", "examples.agent.app:app", "-d", str(path)]
    environment = os.environ | {"MODEL_URL": model.url}
    return subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2])


async def main(path: Path) -> None:
    asked = KILLED_AT
    model = Model(stops_at=KILLED_AT)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    app.data_dir = path
    async with app:
        job = await ask.enqueue("How much higher is Fuji than Aso?")
        worker = start_worker(path, model)
        for _ in range(KILLED_AT):
            await asyncio.to_thread(model.asked.acquire)
        worker.kill()
        worker.wait()
        model.goes_on.set()
        print(f"killed while the model thought for the {KILLED_AT}rd time")
        worker = start_worker(path, model)
        try:
            print(await job.result("60s"))
        finally:
            worker.terminate()
            worker.wait()
    model.shutdown()
    model.server_close()
    while model.asked.acquire(blocking=False):
        asked += 1
    print(f"asked {asked} times, paid {len(model.bill)} answers")


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory) / "log"))
