"""Routing: attention joins any two positions in one hop, by content; a recurrent net goes step by step."""
