"""Tenants: requests of several API keys take turns in the queue."""
