"""Who may write what a card runs: signatures over records, and the keys that are trusted."""
