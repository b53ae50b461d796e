"""Parts: what rides on the core. Each part is a folder with its end in the scheduler, its end in the runner and the
messages between the two; the core imports none of them (`docs/architecture.md`)."""
