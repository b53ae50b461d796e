"""The OpenAPI description of the server's routes."""
