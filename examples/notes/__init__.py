"""An app for notes and photos that works offline: a job sends each change when it can."""
