"""Messages that cross a process boundary, one module for each link."""
