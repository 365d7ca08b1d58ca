"""External services of both apps: shops, banks and post offices that sometimes fail."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order."""

    customer: str
    email: str
    articles: tuple[str, ...]


@dataclass(slots=True)
class World:
    """Remembers all calls. The first lookup of each article's price fails.

    Attributes:
        mailed: event, set after a mail was sent.
    """

    asked: Counter[str] = field(default_factory=Counter)
    charges: list[tuple[str, int]] = field(default_factory=list)
    mails: list[tuple[str, str]] = field(default_factory=list)
    reminded: set[str] = field(default_factory=set)
    mailed: threading.Event = field(default_factory=threading.Event)

    def look_up_price(self, article: str) -> int:
        """Return the price in cents.

        Raises:
            ConnectionError: the first time.
        """
        self.asked[article] += 1
        if self.asked[article] == 1:
            raise ConnectionError(f"no connection to the price of {article}")
        return 100 * len(article)

    def charge(self, customer: str, amount: int) -> str:
        """Return a receipt.

        Raises:
            TimeoutError: the first time.
        """
        self.asked[customer] += 1
        if self.asked[customer] == 1:
            raise TimeoutError("the bank does not answer")
        self.charges.append((customer, amount))
        return f"{customer} {amount}"

    def send_mail(self, to: str, text: str) -> None:
        self.mails.append((to, text))
        self.mailed.set()

    def once_a_day(self, what: str) -> bool:
        is_new = what not in self.reminded
        self.reminded.add(what)
        return is_new

    def clear(self) -> None:
        self.asked.clear()
        self.charges.clear()
        self.mails.clear()
        self.reminded.clear()
        self.mailed.clear()


world: Final = World()
