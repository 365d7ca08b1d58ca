"""taskq plugins: each loads only when it is used."""
