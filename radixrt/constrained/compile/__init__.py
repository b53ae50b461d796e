"""From a constraint to a grammar that is ready: compilation in processes of its own, caches, `GrammarManager`."""
