"""The libraries that compute masks: what is asked of one, how each is written for, and which is taken."""
