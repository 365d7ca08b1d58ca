"""A shop in Django whose receipts are sent by taskq."""
