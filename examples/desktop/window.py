# window.py
import multiprocessing
import time
import tkinter as tk
from tkinter import ttk

from taskq import JobHandle, TaskQ, current_job

app = TaskQ.user_data("Picture Book")  # where this system keeps a user's data


@app.task(runs_in="process")  # heavy work does not make the window stutter
def shrink(pictures: int) -> str:
    for number in range(1, pictures + 1):
        time.sleep(0.1)  # the work
        current_job().progress(number / pictures, f"picture {number} of {pictures}")
    return f"{pictures} pictures are smaller"


class Window:
    def __init__(self, root: tk.Tk) -> None:
        self.root = root
        self.bar = ttk.Progressbar(root, maximum=1.0, length=300)
        self.label = ttk.Label(root, text=f"{waiting()} jobs from the last time")
        self.button = ttk.Button(root, text="Shrink", command=self.start)
        for part in (self.button, self.bar, self.label):
            part.pack(padx=20, pady=8)
        self.job: JobHandle[str] | None = None
        self.look()

    def start(self) -> None:
        self.job = shrink.options(key="shrink").enqueue_sync(20)  # a second click: the same job

    def look(self) -> None:
        if self.job and (step := self.job.progress_sync()):
            self.bar["value"] = step.fraction
            self.label["text"] = step.message
        elif self.job and self.job.status_sync().name == "SUCCEEDED":
            self.bar["value"] = 1.0
            self.label["text"] = self.job.result_sync()
        self.root.after(250, self.look)


def waiting() -> int:
    return sum(queue.ready + queue.running for queue in app.stats_sync().queues)


def main() -> None:
    with app, app.worker_thread(concurrency=2, drain_timeout="0.2s"):
        root = tk.Tk()
        root.title("Picture Book")
        window = Window(root)
        root.mainloop()
        print(window.label["text"], f"- {waiting()} to do")


if __name__ == "__main__":
    multiprocessing.freeze_support()  # in a frozen child nothing below runs
    main()
