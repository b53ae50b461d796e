"""Images of requests, from the bytes that a client sends to the pixels that a vision tower reads. No module imports
torch; Pillow is imported when the first image is processed."""
