"""`radixrt tree`: the live radix tree of a server in a terminal, from the same feed as the page /ui."""
