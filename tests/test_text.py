"""Foreign text is shown as text, without values that have the name of a secret."""

import time

import pytest

from taskq.text import flat, hidden, is_secret, without_secrets

SECRET = ("password", "pwd", "PIN", "userPin", "auth", "x-auth-token", "client_secret", "bearer",
          "Authorization", "api_key", "OAuth", "cookie", "PASSPHRASE", "DB_PWD")  # fmt: skip
OPEN = ("author", "authors", "pinned", "spin", "max_tokens", "key", "name", "pwdless", "opinion")


@pytest.mark.parametrize("name", SECRET)
def test_names_that_call_what_they_hold_secret(name: str) -> None:
    assert is_secret(name)
    assert without_secrets({name: "hunter2", "to": [{name: {"a": "hunter2"}}]}) == {
        name: "(set)", "to": [{name: "(set)"}],
    }  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_names_that_only_look_like_it(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize("text", [
    "connect(password='hunter2', host='h')",
    'got {"pwd": "hunter2", "to": "ada"}',
    "{'auth': 'hunter2 and more'}",
    "PIN=hunter2",
    "{'auth': ['x', {'y': 'hunter2'}]}",
    "token: hunter2",
    "Authorization: Bearer hunter2",
    "authorization: Basic hunter2",
    "sent bearer hunter2",
    "https://ada:hunter2@host/x",
    'api_key = "hunter\\"2 hunter2"',
])  # fmt: skip
def test_text_that_quotes_a_secret_is_shown_without(text: str) -> None:
    assert "hunter" not in hidden(text)


@pytest.mark.parametrize("text", ["to='ada'", "ValueError: no such file: a=b", "", "the bear: ok"])
def test_other_text_is_shown_as_it_is(text: str) -> None:
    assert hidden(text) == text


@pytest.mark.parametrize(
    "piece", ["a", "a-", "token=", 'token="', "token='", "=", ": ", "//", "\\"]
)
def test_a_long_text_is_looked_into_in_a_time_that_grows_with_it(piece: str) -> None:
    def seconds(count: int) -> float:
        text, begun = piece * count + "token=x", time.process_time()
        hidden(text)
        return time.process_time() - begun

    assert seconds(50_000) < 0.02 + 4 * 10 * min(seconds(5_000) for _ in range(3))


def test_values_without_a_name_stay() -> None:
    assert without_secrets([7, None, True, {"token": ""}]) == [7, None, True, {"token": ""}]


def test_a_part_of_a_line_begins_no_other() -> None:
    assert flat("a\nb\x1b\x9b\u202e") == "a\\nb\\x1b\\x9b\\u202e"
