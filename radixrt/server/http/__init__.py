"""HTTP below the routes: receiving bodies, connections, errors, middleware, metrics and the uvicorn server."""
