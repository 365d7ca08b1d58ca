"""An order that takes days: charge, wait, hear from the customer, pack, ship."""
