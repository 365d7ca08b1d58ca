# sensor.py
from taskq import TaskQ

app = TaskQ("./edge-7")
HIGHEST = 90


@app.task(retry=1)
def upload(value: float) -> str:
    if value > HIGHEST:
        raise ValueError("the sensor is broken")
    return f"sent {value}"


@app.task
def update(version: str) -> str:
    return f"updated to {version}"
