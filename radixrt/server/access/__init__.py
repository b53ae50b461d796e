"""Tenants, API keys, and checks of paths, hosts and origins."""
