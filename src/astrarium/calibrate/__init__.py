"""Measuring a device, and learning from what was measured."""
