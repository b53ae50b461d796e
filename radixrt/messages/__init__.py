"""Every message that crosses a process boundary, one module for each link."""
