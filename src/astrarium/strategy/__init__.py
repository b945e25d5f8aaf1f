"""Strategies: their type, their columns, how layers are dealt, rules about them."""
