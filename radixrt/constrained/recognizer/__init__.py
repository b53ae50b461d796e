"""`Recognizer`: follows a text through a grammar, and finds shortest completions."""

from radixrt.constrained.recognizer.frames import RecognizerTooComplex
from radixrt.constrained.recognizer.recognizer import Closing, Recognizer, State

__all__ = ["Closing", "Recognizer", "RecognizerTooComplex", "State"]
