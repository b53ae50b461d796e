"""The frontend language: programs of many model calls whose structure the engine can see."""
