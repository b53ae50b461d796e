"""The normal form of a schema: nodes whose alternatives a solver works out from the keywords."""
