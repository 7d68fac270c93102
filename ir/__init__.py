"""The intermediate representation: types, ops, graphs and their text."""
