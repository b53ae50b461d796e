"""Types of answers and of events: a route builds a Struct, msgspec encodes it, the OpenAPI description describes it."""
