"""Weight formats: how a checkpoint stores weights, how parameters keep them, and how layers multiply by them."""
