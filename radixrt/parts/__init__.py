"""Parts: optional features on top of the scheduler's and the runner's core. Each part is a folder, with modules for its
end in the scheduler and its end in the runner. The core imports no part (`docs/architecture.md`)."""
