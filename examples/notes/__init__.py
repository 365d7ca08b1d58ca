"""An app for notes and photos that works offline: each change is a job that goes when it can."""
