"""Notes with photos, stored locally first and sent when the server can be reached.

An edit is complete once it is on the local disk, together with the job that sends it. A note that
is edited again before it was sent is sent once, in its newest form. A photo is stored under the
hash of its content, so that sending it twice changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiofiles
import httpx

from taskq import Discard, TaskQ, retry
from taskq.conditions import online, unmetered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq import Call

HOME: Final = Path(os.environ.get("NOTES_HOME", "notes-data"))
SERVER: Final = os.environ.get("NOTES_SERVER", "http://127.0.0.1:8480")
_ADDRESS: Final = SERVER.partition("//")[2]
_PATIENCE_SECONDS: Final = 30
_CONFLICT: Final = 409

app = TaskQ(HOME / "queue")
#: A phone may be offline for weeks, but failures without a network do not use attempts.
_AGAIN: Final = retry.exponential(attempts=50, base="1s", cap="10m")


@dataclass
class Note:
    """A note on the local disk."""

    text: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    revision: int = 1
    photos: list[str] = field(default_factory=list)

    def save(self) -> None:
        path = HOME / "notes" / f"{self.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, note_id: str) -> Note:
        return cls(**json.loads((HOME / "notes" / f"{note_id}.json").read_text(encoding="utf-8")))


def notes() -> Iterator[Note]:
    for path in sorted((HOME / "notes").glob("*.json")):
        yield Note.load(path.stem)


def photo_path(digest: str) -> Path:
    return HOME / "photos" / digest


# -- the user's actions ----------------------------------------------------------------------------


async def add(text: str, photos: list[Path] | None = None) -> Note:
    note = Note(text)
    for photo in photos or []:
        async with aiofiles.open(photo, "rb") as file:
            data = await file.read()
        digest = hashlib.sha256(data).hexdigest()
        photo_path(digest).parent.mkdir(parents=True, exist_ok=True)
        async with aiofiles.open(photo_path(digest), "wb") as file:
            await file.write(data)
        note.photos.append(digest)
    note.save()
    # One transaction, so that a note never arrives without jobs for its photos.
    await app.enqueue_many([_sending(note), *map(send_photo.call, note.photos)])
    return note


async def edit(note_id: str, text: str) -> Note:
    """Change a note; if a job to send it is still waiting, this job sends the new text."""
    note = Note.load(note_id)
    note.text, note.revision = text, note.revision + 1
    note.save()
    await app.enqueue(_sending(note))
    return note


# -- jobs ------------------------------------------------------------------------------------------


@app.task(name="notes.send", queue="notes", priority=7, retry=_AGAIN, requires=[online(_ADDRESS)])
async def send_note(note_id: str, revision: int) -> int:
    """Send the current note; safe to repeat, since the server keeps the later revision."""
    note = Note.load(note_id)
    async with httpx.AsyncClient(base_url=SERVER, timeout=_PATIENCE_SECONDS) as server:
        answer = await server.put(f"/notes/{note.id}", json=asdict(note))
    if answer.status_code == _CONFLICT:
        raise Discard(f"the server has a later revision than {revision}")
    answer.raise_for_status()
    return note.revision


@app.task(
    name="notes.photo",
    queue="photos",
    priority=2,
    retry=_AGAIN,
    requires=[online(_ADDRESS), unmetered()],
)
async def send_photo(digest: str) -> None:
    """Send a photo under the hash of its content."""
    async with aiofiles.open(photo_path(digest), "rb") as file:
        data = await file.read()
    async with httpx.AsyncClient(base_url=SERVER, timeout=_PATIENCE_SECONDS) as server:
        (await server.put(f"/photos/{digest}", content=data)).raise_for_status()


@app.task(name="notes.resend", queue="notes")
async def resend() -> int:
    """Send everything again; a hub may order this after the server lost a disk."""
    everything = list(notes())
    photos = {digest for note in everything for digest in note.photos}
    await app.enqueue_many([*map(_sending, everything), *map(send_photo.call, sorted(photos))])
    return len(everything)


def _sending(note: Note) -> Call[Any]:
    task = send_note.options(key=note.id, on_conflict="replace")
    return task.call(note.id, note.revision)
