"""A shop in Django that sends receipts by jobs."""
