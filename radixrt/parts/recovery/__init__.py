"""Recovery: requests that may have killed the ModelRunner are tried alone."""
