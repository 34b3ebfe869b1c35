"""The paper's profile from start to end on files in the hub's layout, with every number made small."""
