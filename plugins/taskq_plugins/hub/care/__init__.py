"""What people do to copies, besides letting devices sync."""
