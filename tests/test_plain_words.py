"""The programs that count words, names and rooms: what the checker takes for a habit."""

from __future__ import annotations

import pytest

from tests.lines import Shape, house
from tests.words import FOLDERS, ROOT, habits, of_folder, share, subjects

#: A share of texts; projects like this one have 1 to 3.5 %.
SHARE_MAX = 0.03
REPEATED_CLASSES_MAX = 15

BROKEN = {
    "D1": [
        "Answer whoever asks.",
        "The segments of one log for who compares.",
        "Return the time of what is due.",
        "Delete all that ended.",
    ],
    "D2": ["Keep those that wait.", "The file of one that died.", "Its pid is that of a worker."],
    "D3": ["The caller is told.", "As the record tells it.", "Return what help says of a command."],
    "D4": ["Nor does it log.", "It is kept. Not taken back: others wait.", "Of a body, a line."],
    "D5": ["The bytes behind a frame.", "Let so many jobs pass.", "As SQLite has it."],
}
GOOD = [
    "Return whether scanning from this job costs more than `count` single lookups.",
    "Append a frame; truncate it if the write was short.",
    "Jobs and the upload's progress go into one frame, so a crash neither skips nor repeats a job.",
    "Create the directory and fsync its parent: an earlier process may have died in between.",
    "What is a lease?",
    "Call ``whoever`` once.",
]


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_finds_its_habit(rule: str) -> None:
    assert [text for text in BROKEN[rule] if rule not in habits(text)] == []


def test_plain_sentences_have_no_habit() -> None:
    assert [text for text in GOOD if habits(text)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_few_texts_have_a_habit(folder: str) -> None:
    assert share(of_folder(ROOT / folder)) <= SHARE_MAX


def test_few_subjects_of_commits_have_a_habit() -> None:
    """A copy without a history has none."""
    assert share(subjects()) <= SHARE_MAX


def test_few_class_names_are_used_twice() -> None:
    assert len(Shape().repeated_classes) <= REPEATED_CLASSES_MAX


def test_the_picture_of_the_house_has_each_room_after_those_that_it_imports() -> None:
    rooms = house()
    order = list(rooms)
    for room, imported in rooms.items():
        assert all(order.index(other) < order.index(room) for other in imported), room
    assert order.index("taskq.core") < order.index("taskq.log") < order.index("taskq.app")
    # Through the front page, which looks names up late.
    assert order.index("taskq.app") < order.index("taskq_workers")
    assert "taskq.log" not in rooms["taskq.app"], "taskq.connection implies it"
