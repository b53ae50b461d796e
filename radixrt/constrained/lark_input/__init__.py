"""Grammars that clients write in Lark's notation: translated into productions, or given to llguidance as they are."""
