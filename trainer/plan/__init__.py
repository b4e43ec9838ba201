"""How long a step takes and whether it fits, told before a card is asked for. No torch."""
