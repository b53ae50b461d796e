"""Clients of the server as users have them: each in an environment of its own (`make clients`), and their recorded
requests, which the suite sends again."""
