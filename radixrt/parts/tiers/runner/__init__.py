"""Runner end of tiers: `Mover` executes the orders of `radixrt.messages.kv_moves` in one rank."""

from radixrt.parts.tiers.runner.mover import Mover

__all__ = ["Mover"]
