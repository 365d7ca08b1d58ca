"""``python -m examples.notes``: write notes, list them, and run their server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from .app import HOME, add, app, edit, notes
from .server import make_server


@click.group()
def main() -> None:
    """Notes and photos, offline first. A worker sends them: taskq worker examples.notes.app:app."""


@main.command("add")
@click.argument("text")
@click.option("--photo", "photos", multiple=True, type=click.Path(exists=True, path_type=Path))
def add_note(text: str, photos: tuple[Path, ...]) -> None:
    """Write a note, with photos."""

    async def write() -> None:
        async with app:
            click.echo((await add(text, list(photos))).id)

    asyncio.run(write())


@main.command("edit")
@click.argument("note_id")
@click.argument("text")
def edit_note(note_id: str, text: str) -> None:
    """Change a note."""
    if note_id not in {note.id for note in notes()}:
        raise click.ClickException(f"there is no note {note_id!r}; ls lists them")

    async def write() -> None:
        async with app:
            click.echo(f"revision {(await edit(note_id, text)).revision}")

    asyncio.run(write())


@main.command("ls")
def list_notes() -> None:
    """List the notes of this device."""
    for note in notes():
        photos = f"  ({len(note.photos)} photos)" if note.photos else ""
        click.echo(f"{note.id}  {note.revision}  {note.text}{photos}")


@main.command("serve")
@click.option("--port", default=8480, show_default=True)
def serve(port: int) -> None:
    """Run the server, which keeps what it is sent beside the notes, in SERVER."""
    import uvicorn  # noqa: PLC0415 - slow, and only this command needs it

    uvicorn.run(make_server(HOME / "SERVER"), port=port, log_level="warning")


if __name__ == "__main__":
    main()
