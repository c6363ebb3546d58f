"""Changes of the schema: what they do to the tables of a branch, and how they become the accepted schema."""
