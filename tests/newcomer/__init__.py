"""What a newcomer does first: commands of the documents, examples, and first calls of clients, each timed."""
