"""A device's side: its log as it is sent, what it asks, and the line that it asks on."""
