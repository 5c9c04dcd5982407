"""Distil a small draft for any target, from text that the target writes itself (`python -m saguaro_core distill`)."""
